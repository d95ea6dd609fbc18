// Matrices of experts in codes, made of numbers that are exact in them.
//
// Used by experts_test.cc. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/op_test_util.h"
#include "ops/packed_weights.h"

namespace sluice::testing {

// The numbers of which integers of 4 bits less 8, times kScale, are exact.
inline constexpr float kScale = 0x1p-6f;
inline uint8_t zero_of(WeightFormat format) {
  return format.numbers == WeightNumbers::kUint4 ? 8 : 201;
}

// Every scale is one of these, by the row's or block's number, and by the group's.
inline float scale_of(int64_t row, int64_t group) {
  return std::ldexp(1.0f, static_cast<int>((row + 3 * group) % 5) - 8);
}

inline constexpr WeightFormat kGguf4 = {
    .numbers = WeightNumbers::kGguf4, .group_cols = 32, .block_cols = 32, .has_minima = true};
inline constexpr WeightFormat kGguf8 = {
    .numbers = WeightNumbers::kGguf8, .group_cols = 16, .block_cols = 256};

// Factors of GGUF's blocks, by a matrix's row and group.
inline int factor_of(int64_t row, int64_t group) { return 1 + static_cast<int>((row + group) % 3); }

// Codes of e4m3 from 1 to 1.875, of both signs: exact times any scale.
inline uint8_t code_of(BFloat16 value, float scale) {
  const float number = std::abs(static_cast<float>(value)) / scale;
  const auto eighths = static_cast<uint8_t>(std::clamp(number, 1.0f, 1.875f) * 8 - 8);
  return static_cast<uint8_t>(0x38 + eighths) | (static_cast<float>(value) < 0 ? 0x80 : 0);
}

inline float value_of(uint8_t code, float scale) {
  const float number = 1.0f + static_cast<float>(code & 7) / 8;
  return (code & 0x80 ? -number : number) * scale;
}

// Makes numbers exact in the format. num_rows: of an expert's matrix.
inline void round_to(WeightFormat format, std::vector<BFloat16>& values, int64_t num_rows,
                     int64_t num_cols) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (stores_integers(format)) {
      const float number = std::round(static_cast<float>(values[i]) / kScale);
      values[i] = BFloat16(std::clamp(number, -8.0f, 7.0f) * kScale);
      continue;
    }
    const auto index = static_cast<int64_t>(i);
    const int64_t row = index / num_cols % num_rows / format.group_rows;
    const int64_t group = format.group_cols == 0 ? 0 : index % num_cols / format.group_cols;
    if (stores_gguf(format)) {
      const float step = kScale * static_cast<float>(factor_of(row, group));
      const float number = std::round(static_cast<float>(values[i]) / step);
      values[i] = BFloat16(std::clamp(number, -8.0f, 7.0f) * step);
      continue;
    }
    const float scale = scale_of(row, group);
    values[i] = BFloat16(value_of(code_of(values[i], scale), scale));
  }
}

// A matrix of such numbers as codes, with a scale for each row, or block, and group.
inline void pack_codes(Machine& machine, const BFloat16* values, const PackedWeight& dst,
                       int64_t row_begin, int64_t num_rows) {
  const int64_t k = dst.num_cols, groups = scales_per_row(dst.format, k);
  const int64_t shared = dst.format.group_rows;
  std::vector<float> scales;
  for (int64_t row = 0; row < (num_rows + shared - 1) / shared; ++row) {
    for (int64_t group = 0; group < groups; ++group) scales.push_back(scale_of(row, group));
  }
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < num_rows * k; ++i) {
    const int64_t group = dst.format.group_cols == 0 ? 0 : i % k / dst.format.group_cols;
    codes.push_back(code_of(values[i], scale_of(i / k / shared, group)));
  }
  pack_weight(machine.stream(), {.src = TensorView(codes.data(), DType::kU8, {num_rows, k}),
                                 .dst = dst,
                                 .row_begin = row_begin,
                                 .scales = TensorView(scales.data(), DType::kF32,
                                                      {std::ssize(scales) / groups, groups}),
                                 .scale_rows = shared});
  machine.synchronize();
}

// A matrix of such numbers as integers, its columns in reverse order, or turned by one, where the
// format has orders.
inline void pack_integers(Machine& machine, const BFloat16* values, const PackedWeight& dst,
                          int64_t row_begin, int64_t num_rows) {
  const int64_t k = dst.num_cols, groups = scales_per_row(dst.format, k);
  const int32_t index = row_begin > 0 ? 1 : 0;
  const bool is_ordered = dst.format.num_orders > 0;
  const uint8_t zero = zero_of(dst.format);
  std::vector<int32_t> order;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t other = index == 0 ? k - 1 - i : (i + 1) % k;
    order.push_back(static_cast<int32_t>(is_ordered ? other : i));
  }
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < num_rows * k; ++i) {
    const auto value = static_cast<float>(values[i / k * k + order[static_cast<size_t>(i % k)]]);
    codes.push_back(static_cast<uint8_t>(value / kScale + zero));
  }
  std::vector<float> scales(static_cast<size_t>(num_rows * groups), kScale);
  std::vector<uint8_t> zeros(scales.size(), zero);
  pack_weight(machine.stream(),
              {.src = TensorView(codes.data(), DType::kU8, {num_rows, k}),
               .dst = dst,
               .row_begin = row_begin,
               .scales = TensorView(scales.data(), DType::kF32, {num_rows, groups}),
               .zeros = TensorView(zeros.data(), DType::kU8, {num_rows, groups}),
               .order = is_ordered ? TensorView(order.data(), DType::kI32, {k}) : TensorView(),
               .order_index = is_ordered ? index : 0});
  machine.synchronize();
}

// A matrix of such numbers as blocks of GGUF; codes of 4 bits have the minimum of 8 steps.
inline void pack_gguf(Machine& machine, const BFloat16* values, const PackedWeight& dst,
                      int64_t row_begin, int64_t num_rows) {
  const int64_t k = dst.num_cols, groups = k / dst.format.group_cols;
  const int64_t blocks = k / dst.format.block_cols;
  const int lowest = dst.format.has_minima ? -8 : 0;
  std::vector<uint8_t> codes, factors, minima;
  for (int64_t i = 0; i < num_rows * groups; ++i) {
    factors.push_back(static_cast<uint8_t>(factor_of(i / groups, i % groups)));
    minima.push_back(static_cast<uint8_t>(8 * factors.back()));
  }
  for (int64_t i = 0; i < num_rows * k; ++i) {
    const auto factor = static_cast<float>(factor_of(i / k, i % k / dst.format.group_cols));
    const float number = static_cast<float>(values[i]) / (kScale * factor);
    codes.push_back(static_cast<uint8_t>(static_cast<int>(number) - lowest));
  }
  std::vector<Float16> scales(static_cast<size_t>(num_rows * blocks), Float16{0x2400});  // kScale
  const TensorView of_blocks(scales.data(), DType::kF16, {num_rows, blocks});
  GgufValues of_rows{.factors = TensorView(factors.data(), DType::kU8, {num_rows, groups}),
                     .minima = {},
                     .scales = of_blocks,
                     .min_scales = {}};
  if (dst.format.has_minima) {
    of_rows.minima = TensorView(minima.data(), DType::kU8, {num_rows, groups});
    of_rows.min_scales = of_blocks;
  }
  pack_weight(machine.stream(), {.src = TensorView(codes.data(), DType::kU8, {num_rows, k}),
                                 .dst = dst,
                                 .row_begin = row_begin,
                                 .values = of_rows});
  machine.synchronize();
}

}  // namespace sluice::testing
