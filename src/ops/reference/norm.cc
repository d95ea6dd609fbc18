// out = (weight_offset + weight) * r / sqrt(mean(r^2) + eps), where r is x, or bf16(residual + x).
#include "ops/reference/norm.h"

#include <cmath>

namespace sluice::reference {

std::vector<double> rms_norm(const RmsNormArgs& args) {
  const int64_t hidden = args.x.dim(1);
  const auto* x = args.x.data<BFloat16>();
  const auto* weight = args.weight.data<BFloat16>();
  std::vector<double> out(static_cast<size_t>(args.x.num_elements()));
  for (int64_t row = 0; row < args.x.dim(0); ++row) {
    std::vector<double> r(static_cast<size_t>(hidden));
    double squares = 0.0;
    for (int64_t i = 0; i < hidden; ++i) {
      float value = static_cast<float>(x[row * hidden + i]);
      if (args.residual.present()) {
        const auto* residual = args.residual.data<BFloat16>();
        // Rounded as in the op: the norm and the next layer see the bf16 sum.
        value =
            static_cast<float>(BFloat16(static_cast<float>(residual[row * hidden + i]) + value));
      }
      r[static_cast<size_t>(i)] = value;
      squares += static_cast<double>(value) * value;
    }
    const double root = std::sqrt(squares / static_cast<double>(hidden) + args.eps);
    for (int64_t i = 0; i < hidden; ++i) {
      out[static_cast<size_t>(row * hidden + i)] =
          (args.weight_offset + static_cast<double>(static_cast<float>(weight[i]))) *
          r[static_cast<size_t>(i)] / root;
    }
  }
  return out;
}

}  // namespace sluice::reference
