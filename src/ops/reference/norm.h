// RMSNorm in double precision, written from the equation. Used by tests only.
// Thread rule: a pure function over host-readable memory.
#pragma once

#include <vector>

#include "ops/rows/norm.h"

namespace sluice::reference {

// What `out` must be, [m, hidden]; reads x and residual, writes neither. A residual sum is rounded
// to bf16 as in the contract, since the norm reads the rounded sum. Called before the op, which
// replaces the residual.
std::vector<double> rms_norm(const RmsNormArgs& args);

}  // namespace sluice::reference
