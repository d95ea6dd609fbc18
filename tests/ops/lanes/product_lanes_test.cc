// Products of up to 16 rows with weights in e4m3, computed by the source of the CUDA kernel on
// lanes of a CPU (lanes.h).
//
// Double precision over what codes and scales stand for reveals a wrong address, column or scale;
// sums of one number of rows against another, a row that depends on its neighbours or on the way in
// which it became f16. What only a GPU has, its rounding and its speed, is left to matmul_test on
// one.
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/op_memory.h"
#include "ops/op_test_util.h"

namespace sluice::cuda {
namespace {

using testing::kUnitF32;
using testing::Machine;
using testing::random_bf16;

// Of e4m3, by definition.
double number_of(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// Codes row by row, then a scale for each 128 columns of each row, as e4m3.h has them in memory.
class Weight {
 public:
  Weight(Machine& machine, int64_t n, int64_t k)
      : packed_{.data = machine.poisoned(
                    static_cast<size_t>((n * k + 15) / 16 * 16 + n * num_groups(k) * 4)),
                .num_rows = n,
                .num_cols = k,
                .format = WeightFormat::kE4m3Groups},
        layout_(e4m3_scale_layout(packed_.format, n, k)) {
    uint32_t state = static_cast<uint32_t>(n * 7919 + k);
    const auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
    for (int64_t i = 0; i < n * k; ++i) {
      const auto code = static_cast<uint8_t>(draw());
      codes()[i] = (code & 0x7f) == 0x7f ? uint8_t{0} : code;
    }
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t group = 0; group < num_groups(k); ++group) {
        scale(row, group) = std::ldexp(1.0f + static_cast<float>(draw() & 1023) / 1024,
                                       -static_cast<int>(draw() % 12));
      }
    }
  }

  const PackedWeight& packed() const { return packed_; }
  double value(int64_t row, int64_t column) const {
    return number_of(codes()[row * packed_.num_cols + column]) *
           double{scale(row, column / kScaleGroup)};
  }

 private:
  static int64_t num_groups(int64_t k) { return (k + kScaleGroup - 1) / kScaleGroup; }
  uint8_t* codes() const { return reinterpret_cast<uint8_t*>(packed_.data); }
  float& scale(int64_t row, int64_t group) const {
    return e4m3_scales(
        packed_)[(row >> layout_.row_shift) * layout_.row_stride + group * layout_.group_stride];
  }

  PackedWeight packed_;
  E4m3ScaleLayout layout_;
};

// shared_bytes: what the GPU has for a block.
std::vector<float> multiply(Machine& machine, const std::vector<BFloat16>& x, int64_t m,
                            const Weight& weight, size_t shared_bytes) {
  const PackedWeight& packed = weight.packed();
  const TensorView out = machine.tensor(DType::kF32, {m, packed.num_rows});
  const std::vector<BFloat16> rows(x.begin(), x.begin() + m * packed.num_cols);
  CudaStream stream;
  stream.device.own.sharedMemPerBlockOptin = shared_bytes;
  matmul_skinny_e4m3(
      stream,
      {.x = machine.tensor(rows, {m, packed.num_cols}), .weight = packed, .bias = {}, .out = out});
  return machine.download<float>(out);
}

// Rows of very different sizes, and in each group of columns numbers of very different sizes.
std::vector<BFloat16> random_rows(int64_t m, int64_t k) {
  std::vector<BFloat16> x = random_bf16(m * k, 5);
  for (int64_t i = 0; i < m * k; ++i) {
    const int exponent = static_cast<int>(i / k * 7 % 40 - 20 + i % 11 - i / 128 % 3 * 9);
    auto& number = x[static_cast<size_t>(i)];
    number = BFloat16(std::ldexp(static_cast<float>(number), exponent));
  }
  return x;
}

// Numbers of rows that become f16 in different ways and have kernels of their own, on a GPU with
// Hopper's shared memory and on one with the least.
TEST(E4m3Lanes, ProductsAreNearTheReferenceAndDoNotDependOnTheNumberOfRows) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{40, 272}, {97, 2192}, {8, 16}}) {
    Machine machine(1);
    const Weight weight(machine, n, k);
    const std::vector<BFloat16> x = random_rows(16, k);
    std::vector<float> whole;
    for (const size_t shared_bytes : {lanes::kSharedBytes, kLeastSharedBytes}) {
      for (const int64_t m : {16, 1, 2, 3, 8, 9}) {
        const std::vector<float> out = multiply(machine, x, m, weight, shared_bytes);
        if (whole.empty()) whole = out;
        EXPECT_EQ(out, std::vector<float>(whole.begin(), whole.begin() + m * n))
            << fmt::format("{} rows, {} by {}, {} bytes", m, n, k, shared_bytes);
      }
    }
    for (int64_t row = 0; row < 16; ++row) {
      for (int64_t column = 0; column < n; ++column) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t l = 0; l < k; ++l) {
          const double product = double{static_cast<float>(x[static_cast<size_t>(row * k + l)])} *
                                 weight.value(column, l);
          sum += product;
          magnitude += std::abs(product);
        }
        const double bound = static_cast<double>(k + 3) * kUnitF32 * magnitude;
        ASSERT_NEAR(double{whole[static_cast<size_t>(row * n + column)]}, sum, bound)
            << row << ", " << column << " of " << n << " by " << k;
      }
    }
  }
}

TEST(E4m3Lanes, NumbersThatAreNotFiniteMakeTheirRowsNaN) {
  Machine machine(1);
  const Weight weight(machine, 8, 256);
  std::vector<BFloat16> x = random_bf16(2 * 256, 6);
  x[200] = BFloat16(INFINITY);
  for (const int64_t m : {1, 2}) {
    const std::vector<float> out = multiply(machine, x, m, weight, lanes::kSharedBytes);
    for (int64_t i = 0; i < m * 8; ++i) {
      EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), i < 8) << i;
    }
  }
}

}  // namespace
}  // namespace sluice::cuda
