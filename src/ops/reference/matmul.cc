// out[i][j] = sum over l of x[i][l] * weight[j][l], plus bias[j], and the same sum of absolute
// terms.
#include "ops/reference/matmul.h"

#include <cmath>

namespace sluice::reference {

MatmulOutput matmul(const MatmulInput& input) {
  const auto element = [](const std::vector<BFloat16>& values, int64_t index) {
    return static_cast<double>(static_cast<float>(values[static_cast<size_t>(index)]));
  };
  MatmulOutput output;
  for (int64_t i = 0; i < input.m; ++i) {
    for (int64_t j = 0; j < input.n; ++j) {
      double value = input.bias.empty() ? 0.0 : element(input.bias, j);
      double magnitude = std::abs(value);
      for (int64_t l = 0; l < input.k; ++l) {
        const double product =
            element(input.x, i * input.k + l) * element(input.weight, j * input.k + l);
        value += product;
        magnitude += std::abs(product);
      }
      output.value.push_back(value);
      output.magnitude.push_back(magnitude);
    }
  }
  return output;
}

}  // namespace sluice::reference
