// Products of up to 16 rows with weights in e4m3, computed by the source of the CUDA kernel on
// lanes of a CPU (lanes.h).
//
// Double precision over what codes and scales stand for reveals a wrong address, column or scale;
// sums of one number of rows against another, a row that depends on its neighbours or on the way in
// which it became f16. What only a GPU has, its rounding and its speed, is left to matmul_test on
// one.
#include <cmath>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/experts/coded_experts.h"
#include "ops/lanes/e4m3_weight.h"
#include "ops/op_test_util.h"
#include "ops/reference/experts.h"

namespace sluice::cuda {
namespace {

using testing::kUnitF32;
using testing::Machine;
using testing::random_bf16;

E4m3Weight random_weight(Machine& machine, int64_t n, int64_t k) {
  return {machine.poisoned(E4m3Weight::bytes(n, k)), n, k, /*scale_bits=*/10};
}

// shared_bytes: what the GPU has for a block.
std::vector<float> multiply(Machine& machine, const std::vector<BFloat16>& x, int64_t m,
                            const E4m3Weight& weight, size_t shared_bytes) {
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
// Hopper's shared memory and on one with the least. Weights of 40, 97 and 137 rows are parts of
// four, five and two eights.
TEST(E4m3Lanes, ProductsAreNearTheReferenceAndDoNotDependOnTheNumberOfRows) {
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{40, 272}, {97, 2192}, {137, 272}, {8, 16}}) {
    Machine machine(1);
    const E4m3Weight weight = random_weight(machine, n, k);
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
  const E4m3Weight weight = random_weight(machine, 8, 256);
  std::vector<BFloat16> x = random_bf16(2 * 256, 6);
  x[200] = BFloat16(INFINITY);
  for (const int64_t m : {1, 2}) {
    const std::vector<float> out = multiply(machine, x, m, weight, lanes::kSharedBytes);
    for (int64_t i = 0; i < m * 8; ++i) {
      EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), i < 8) << i;
    }
  }
}

// Experts at equal distances, and what they stand for: gate and up, or down alone.
struct Experts {
  PackedExperts packed;
  std::vector<BFloat16> first;   // [expert][row][column]: gate, or down
  std::vector<BFloat16> second;  // up, or nothing
};

Experts random_experts(Machine& machine, int32_t count, int64_t rows_of_part, bool has_two,
                       int64_t k) {
  const int64_t n = has_two ? 2 * rows_of_part : rows_of_part;
  const size_t stride = (E4m3Weight::bytes(n, k) + 15) / 16 * 16;
  std::byte* const memory = machine.poisoned(stride * static_cast<size_t>(count));
  Experts experts;
  experts.packed = {.num_experts = count, .stride_bytes = stride};
  for (int32_t e = 0; e < count; ++e) {
    const E4m3Weight weight(memory + static_cast<size_t>(e) * stride, n, k, /*scale_bits=*/0,
                            static_cast<uint32_t>(e));
    if (e == 0) experts.packed.first = weight.packed();
    for (int64_t row = 0; row < n; ++row) {
      auto& part = row < rows_of_part ? experts.first : experts.second;
      for (int64_t column = 0; column < k; ++column) {
        part.emplace_back(static_cast<float>(weight.value(row, column)));
      }
    }
  }
  return experts;
}

// Rows with three of five experts each, some of them the same; what all rows share is added. The
// bound is that of experts_test.cc.
TEST(ExpertLanes, FewRowsAreNearTheReference) {
  constexpr int64_t kHidden = 272, kIntermediate = 48, kSlots = 3, kRows = 3;
  Machine machine(1);
  const Experts gate_up = random_experts(machine, 5, kIntermediate, true, kHidden);
  const Experts down = random_experts(machine, 5, kHidden, false, kIntermediate);
  reference::ExpertInput input = {.x = random_bf16(kRows * kHidden, 7),
                                  .experts = {4, 0, 2, 1, 4, 3, 0, 2, 4},
                                  .shares = {.5f, .3f, .2f, .6f, .3f, .1f, .4f, .3f, .3f},
                                  .gate = gate_up.first,
                                  .up = gate_up.second,
                                  .down = down.first,
                                  .shared = random_bf16(kRows * kHidden, 8),
                                  .shared_gate = {-1.0f, 0.5f, 2.0f},
                                  .m = kRows,
                                  .k = kSlots,
                                  .hidden = kHidden,
                                  .intermediate = kIntermediate};
  std::vector<uint16_t> act(kRows * kSlots * kIntermediate);
  std::vector<uint16_t> out(kRows * kHidden);
  const auto halves = [](const std::vector<BFloat16>& values) {
    return reinterpret_cast<const uint16_t*>(values.data());
  };
  const ExpertCall call = {.x = halves(input.x),
                           .experts = input.experts.data(),
                           .shares = input.shares.data(),
                           .gate_up = gate_up.packed,
                           .down = down.packed,
                           .shared = halves(input.shared),
                           .shared_gate = input.shared_gate.data(),
                           .out = out.data(),
                           .act = act.data(),
                           .num_rows = kRows,
                           .num_slots = kSlots,
                           .num_experts = 5,
                           .hidden = kHidden,
                           .intermediate = kIntermediate};
  CudaStream stream;
  multiply_coded_gates(stream, call);
  multiply_coded_downs(stream, call);
  const reference::ExpertOutput expected = reference::expert_mlp(input);
  for (size_t i = 0; i < out.size(); ++i) {
    const double bound =
        testing::kUnitBF16 * (4 * expected.magnitude[i] + std::abs(expected.value[i])) + 1e-6;
    ASSERT_NEAR(double{bf16_to_float(out[i])}, expected.value[i], bound) << i;
  }
}

// Experts of random bytes; no float that is made of them is large or NaN.
PackedExperts any_experts(Machine& machine, WeightFormat format, int64_t n, int64_t k) {
  constexpr int32_t kCount = 5;
  const size_t stride = row_major_bytes(n, k, format);
  std::byte* const memory = machine.poisoned(stride * kCount);
  std::mt19937 random(9);
  for (size_t i = 0; i < stride * kCount; ++i) memory[i] = static_cast<std::byte>(random() & 0x3f);
  return {.first = {.data = memory, .num_rows = n, .num_cols = k, .format = format},
          .num_experts = kCount,
          .stride_bytes = stride};
}

// Sorted pairs of 5 experts, of which two have none and one more than a tile, against kernels that
// compute each pair alone: the same bits in each format, with tiles of 8 pairs and of fewer.
TEST(ExpertLanes, TilesHaveTheBitsOfTheirPairs) {
  constexpr int32_t kSize = 256;
  const std::vector<int32_t> begins = {0, 1, 1, 10, 11, 11};
  const int32_t num_pairs = begins.back();
  const WeightFormat formats[] = {WeightFormat::kE4m3Groups,
                                  {.numbers = WeightNumbers::kUint4, .group_cols = 32},
                                  {.numbers = WeightNumbers::kUint4},
                                  {.numbers = WeightNumbers::kUint8, .group_cols = 32},
                                  testing::kGguf4,
                                  testing::kGguf8};
  std::vector<int32_t> experts;
  for (int32_t e = 0; e < 5; ++e) {
    experts.resize(static_cast<size_t>(begins[static_cast<size_t>(e) + 1]), e);
  }
  const std::vector<float> shares(static_cast<size_t>(num_pairs), 1.0f);
  std::vector<BFloat16> x = random_bf16(num_pairs * kSize, 7);
  std::vector<int32_t> own_begins = begins;
  for (const WeightFormat format : formats) {
    Machine machine(1);
    ExpertCall call = {.x = reinterpret_cast<const uint16_t*>(x.data()),
                       .experts = experts.data(),
                       .shares = shares.data(),
                       .gate_up = any_experts(machine, format, 2 * kSize, kSize),
                       .down = any_experts(machine, format, kSize, kSize),
                       .begins = own_begins.data(),
                       .rows = reinterpret_cast<uint16_t*>(x.data()),
                       .num_rows = num_pairs,
                       .num_slots = 1,
                       .num_experts = 5,
                       .hidden = kSize,
                       .intermediate = kSize};
    for (const size_t shared_bytes : {lanes::kSharedBytes, kLeastSharedBytes}) {
      if (shared_bytes == kLeastSharedBytes && stores_gguf(format)) continue;  // takes long
      SCOPED_TRACE(fmt::format("{}, {} bytes", weight_format_name(format), shared_bytes));
      CudaStream stream;
      stream.device.own.sharedMemPerBlockOptin = shared_bytes;
      std::vector<uint16_t> alone(x.size()), out(x.size()), act(x.size());
      std::vector<float> products(x.size());
      call.act = alone.data();
      call.out = out.data();
      multiply_coded_gates(stream, call);
      multiply_coded_downs(stream, call);

      std::vector<int32_t> first_tiles = {0};
      const int32_t tile_rows = coded_tile_rows(stream, call);
      for (size_t e = 0; e < 5; ++e) {
        const int32_t count = begins[e + 1] - begins[e];
        first_tiles.push_back(first_tiles.back() + (count + tile_rows - 1) / tile_rows);
      }
      call.first_tiles = first_tiles.data();
      call.act = act.data();
      call.products = products.data();
      multiply_tile_gates(stream, call);
      multiply_tile_downs(stream, call);
      EXPECT_EQ(act, alone);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(float_to_bf16(products[i]), out[i]) << i;
        ASSERT_TRUE(std::isfinite(products[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::cuda
