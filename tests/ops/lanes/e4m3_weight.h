// Random weights in e4m3 as GPUs have them in memory (ops/cuda/matmul/e4m3.h): codes row by row,
// then a scale for each 128 columns of each row.
//
// Used by tests/ops/lanes. Thread rule: host thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/op_memory.h"
#include "ops/packed_weights.h"

namespace sluice::cuda {

class E4m3Weight {
 public:
  static size_t bytes(int64_t n, int64_t k) {
    return static_cast<size_t>((n * k + 15) / 16 * 16 + n * num_groups(k) * 4);
  }

  // In `memory`, of bytes(n, k). Scales have `scale_bits` bits after the first one; with none all
  // numbers are exact in bf16.
  E4m3Weight(std::byte* memory, int64_t n, int64_t k, int scale_bits, uint32_t seed = 0)
      : packed_{.data = memory, .num_rows = n, .num_cols = k, .format = WeightFormat::kE4m3Groups},
        layout_(e4m3_scale_layout(packed_.format, n, k)) {
    uint32_t state = static_cast<uint32_t>(n * 7919 + k) + seed;
    const auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
    for (int64_t i = 0; i < n * k; ++i) {
      const auto code = static_cast<uint8_t>(draw());
      codes()[i] = (code & 0x7f) == 0x7f ? uint8_t{0} : code;
    }
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t group = 0; group < num_groups(k); ++group) {
        const int64_t fraction = draw() & ((1 << scale_bits) - 1);
        scale(row, group) = std::ldexp(static_cast<float>((1 << scale_bits) + fraction),
                                       -scale_bits - 4 - static_cast<int>(draw() % 12));
      }
    }
  }

  const PackedWeight& packed() const { return packed_; }
  double value(int64_t row, int64_t column) const {
    return testing::e4m3_number(codes()[row * packed_.num_cols + column]) *
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

}  // namespace sluice::cuda
