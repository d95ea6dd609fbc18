// Captured mass in double precision, written from its definition. Used by tests only. Thread rule:
// a pure function over host-readable memory.
#pragma once

#include <vector>

#include "ops/tiles/audit_mass.h"

namespace sluice::reference {

// The audited rows of a call whose run begins at token 0 and holds all keys.
struct AuditedRow {
  int32_t position = 0;
  std::vector<double> captured;  // [num_q_heads]: share of the mass, token by token; NaN where a
                                 // score of the row is not finite
};
std::vector<AuditedRow> audit_mass(const AuditMassArgs& args);

}  // namespace sluice::reference
