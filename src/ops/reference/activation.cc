// out = gate / (1 + exp(-gate)) * up. A row of gate_up is all gates, then all ups.
#include "ops/reference/activation.h"

#include <cmath>

namespace sluice::reference {

std::vector<double> swiglu(const SwigluArgs& args) {
  const int64_t width = args.out.dim(1);
  const auto* gate_up = args.gate_up.data<BFloat16>();
  std::vector<double> out;
  for (int64_t row = 0; row < args.out.dim(0); ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = static_cast<float>(gate_up[row * 2 * width + i]);
      const double up = static_cast<float>(gate_up[row * 2 * width + width + i]);
      out.push_back(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
  return out;
}

}  // namespace sluice::reference
