// Compares with ==, by which zeros of both signs are alike.
#include "support/loaded_weights.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "ops/matmul/matmul.h"

namespace sluice::testing {

std::vector<float> columns_of(const PackedWeight& weight, Stream& stream) {
  const int64_t n = weight.num_rows, k = weight.num_cols;
  std::vector<BFloat16> units(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) units[static_cast<size_t>(i * k + i)] = BFloat16(1.0f);
  std::vector<float> out(static_cast<size_t>(k * n));
  matmul(stream, {.x = TensorView(units.data(), DType::kBF16, {k, k}),
                  .weight = weight,
                  .bias = {},
                  .out = TensorView(out.data(), DType::kF32, {k, n})});
  stream.synchronize();
  return out;
}

void expect_rows(const std::vector<float>& columns, int64_t num_rows, int64_t row_begin,
                 const std::vector<float>& weight, int64_t cols, const std::string& what) {
  const auto rows = static_cast<int64_t>(weight.size()) / cols;
  int64_t num_different = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float loaded = columns[static_cast<size_t>(c * num_rows + row_begin + r)];
      num_different += loaded == weight[static_cast<size_t>(r * cols + c)] ? 0 : 1;
    }
  }
  EXPECT_EQ(num_different, 0) << what;
}

double nmse(std::span<const float> a, std::span<const float> b) {
  double error = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    error += d * d;
    power += static_cast<double>(b[i]) * b[i];
  }
  return error / power;
}

double median_nmse(std::span<const float> a, std::span<const float> b, size_t num_rows) {
  const size_t width = a.size() / num_rows;
  std::vector<double> errors;
  for (size_t row = 0; row < num_rows; ++row) {
    errors.push_back(nmse(a.subspan(row * width, width), b.subspan(row * width, width)));
  }
  const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(num_rows / 2);
  std::nth_element(errors.begin(), middle, errors.end());
  return *middle;
}

}  // namespace sluice::testing
