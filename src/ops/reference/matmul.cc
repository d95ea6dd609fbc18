// out[i][j] = sum over l of x[i][l] * weight[j][l], plus bias[j], and the same sum of absolute
// terms.
#include "ops/reference/matmul.h"

#include <algorithm>
#include <cmath>

namespace sluice::reference {
namespace {

constexpr float kLargestE4m3 = 448.0f;
constexpr int kLeastExponent = -6;  // of normal numbers
constexpr int kFractionBits = 3;

// The number of e4m3 that is nearest.
double nearest_e4m3(float value) {
  const double magnitude = std::min(std::abs(value), kLargestE4m3);
  const int exponent =
      magnitude == 0 ? kLeastExponent : std::max(std::ilogb(magnitude), kLeastExponent);
  const double step = std::ldexp(1.0, exponent - kFractionBits);
  return std::copysign(std::nearbyint(magnitude / step) * step, value);
}

}  // namespace

std::vector<double> rounded_to_e4m3(const std::vector<BFloat16>& x, int64_t k, int64_t group_cols) {
  const auto num_cols = static_cast<size_t>(k);
  const size_t width = group_cols == 0 ? num_cols : static_cast<size_t>(group_cols);
  std::vector<double> rounded(x.size());
  for (size_t row = 0; row < x.size(); row += num_cols) {
    for (size_t begin = row; begin < row + num_cols; begin += width) {
      const size_t end = std::min(begin + width, row + num_cols);
      float largest = 0;
      for (size_t i = begin; i < end; ++i) {
        largest = std::max(largest, std::abs(static_cast<float>(x[i])));
      }
      const float scale = largest > 0 ? largest / kLargestE4m3 : 1.0f;
      for (size_t i = begin; i < end; ++i) {
        rounded[i] = nearest_e4m3(static_cast<float>(x[i]) / scale) * static_cast<double>(scale);
      }
    }
  }
  return rounded;
}

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
