// SwiGLU in double precision, written from the equation. Used by tests only.
// Thread rule: a pure function over host-readable memory.
#pragma once

#include <vector>

#include "ops/rows/activation.h"

namespace sluice::reference {

// What `out` must be, [m, intermediate].
std::vector<double> swiglu(const SwigluArgs& args);

}  // namespace sluice::reference
