// The element-wise inner loops: every ISA gives the bits of the portable loop, for any length.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/cpu/cpu_features.h"
#include "ops/cpu/rows/kernels.h"

namespace sluice {
namespace {

class RowKernelsOf : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "skipped: this CPU has no such instructions";
  }
};

INSTANTIATE_TEST_SUITE_P(Isas, RowKernelsOf, ::testing::Values(CpuIsa::kAvx2, CpuIsa::kAvx512),
                         [](const auto& isa) {
                           return isa.param == CpuIsa::kAvx2 ? "Avx2" : "Avx512";
                         });

constexpr int64_t kLengths[] = {1, 7, 15, 16, 17, 31, 64, 100, 1000, 1024};

// Numbers of all sizes, with special values: zeros, infinities, a NaN.
std::vector<uint16_t> bf16_numbers(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<uint16_t> numbers;
  for (int64_t i = 0; i < n; ++i) {
    const float value = std::ldexp(static_cast<float>(generator() % 511) - 255.0f,
                                   static_cast<int>(generator() % 24) - 16);
    numbers.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  }
  if (n > 90) numbers[80] = 0x7f80, numbers[81] = 0xff80, numbers[82] = 0x7fc0, numbers[83] = 0;
  return numbers;
}

TEST_P(RowKernelsOf, AddHasThePortableBits) {
  for (const int64_t n : kLengths) {
    const std::vector<uint16_t> x = bf16_numbers(n, 1);
    std::vector<uint16_t> expected = bf16_numbers(n, 2), got = expected;
    row_kernels_portable().add(x.data(), expected.data(), n);
    row_kernels(GetParam()).add(x.data(), got.data(), n);
    EXPECT_EQ(got, expected) << n;
  }
}

TEST_P(RowKernelsOf, NormHasThePortableBitsAlsoInPlace) {
  for (const int64_t n : kLengths) {
    std::vector<uint16_t> x = bf16_numbers(n, 3);
    if (n > 90) x[80] = x[81] = x[82] = 0x3f80;  // else the whole row is NaN
    const std::vector<uint16_t> weight = bf16_numbers(n, 4);
    std::vector<uint16_t> expected(n), got(n);
    row_kernels_portable().norm(x.data(), weight.data(), expected.data(), n, 1e-6f);
    row_kernels(GetParam()).norm(x.data(), weight.data(), got.data(), n, 1e-6f);
    EXPECT_EQ(got, expected) << n;
    row_kernels(GetParam()).norm(x.data(), weight.data(), x.data(), n, 1e-6f);
    EXPECT_EQ(x, expected) << n;
  }
}

TEST_P(RowKernelsOf, SwigluHasThePortableBits) {
  for (const int64_t n : kLengths) {
    const std::vector<uint16_t> gate = bf16_numbers(n, 5), up = bf16_numbers(n, 6);
    std::vector<uint16_t> expected(n), got(n);
    row_kernels_portable().swiglu(gate.data(), up.data(), expected.data(), n);
    row_kernels(GetParam()).swiglu(gate.data(), up.data(), got.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const auto is_nan = [](uint16_t bits) { return (bits & 0x7fff) > 0x7f80; };
      if (is_nan(expected[i]) && is_nan(got[i])) continue;  // which NaN is not defined
      EXPECT_EQ(got[i], expected[i]) << n << " " << i;
    }
  }
}

TEST_P(RowKernelsOf, RopeHasThePortableBitsWithAndWithoutNorm) {
  for (const int64_t n : {2, 6, 30, 64, 128, 250, 1024}) {
    std::vector<uint16_t> x = bf16_numbers(n, 7), weight = bf16_numbers(n, 8);
    if (n > 90) x[80] = x[81] = x[82] = weight[80] = weight[81] = weight[82] = 0x3f80;
    std::vector<float> cos_sin(n);
    for (int64_t i = 0; i < n; ++i) cos_sin[i] = std::cos(static_cast<float>(i));
    for (const uint16_t* norm_weight : {weight.data(), static_cast<uint16_t*>(nullptr)}) {
      std::vector<uint16_t> expected(n), got(n);
      RopeHead head{.x = x.data(),
                    .norm_weight = norm_weight,
                    .cos_sin = cos_sin.data(),
                    .out = expected.data(),
                    .head_dim = n,
                    .norm_channels = n,
                    .eps = 1e-6f};
      row_kernels_portable().rope(head);
      head.out = got.data();
      row_kernels(GetParam()).rope(head);
      EXPECT_EQ(got, expected) << n;
    }
  }
}

TEST_P(RowKernelsOf, SumOfExponentialsHasThePortableBits) {
  std::mt19937 generator(9);
  std::normal_distribution<float> normal(0.0f, 20.0f);
  for (const int64_t n : kLengths) {
    std::vector<float> logits(n);
    for (float& logit : logits) logit = normal(generator);
    logits[0] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(row_kernels(GetParam()).sum_exp(logits.data(), n, 50.0f),
              row_kernels_portable().sum_exp(logits.data(), n, 50.0f))
        << n;
  }
}

}  // namespace
}  // namespace sluice
