// Rows of weights of any format, 16 bytes at a time, for kernels that read few of them at once.
//
// 16 bytes are a unit: 8 columns of bf16, 16 of e4m3, 32 of 4 bits, whose scale is read once. A
// warp's lanes take neighbouring units, so that a row is read in whole lines. Numbers become f32 in
// registers; a scale multiplies the sum of the products of a unit. Used by experts/each_pair.cu.
// Thread rule: device code.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/op_memory.h"
#include "ops/experts/experts.h"

namespace sluice::cuda {

// The columns of x that belong to a unit, as f32: up to kEights times 8 that are neighbours.
template <int kEights>
struct UnitOfX {
  float values[kEights][8];
  int num_eights;  // that the row has
};

// The sum plus the products of eight columns, in their order.
__device__ inline float add_eight(const float (&x)[8], const float (&values)[8], float sum) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], values[i], sum);
  return sum;
}

// Every kind of rows has kEights, num_units(columns) and eight(unit, i), the first column of the
// i-th eight of a unit. row(expert, row) has add(unit, x, sum): sum plus the products of the unit.
class Bf16Rows {
 public:
  explicit Bf16Rows(const PackedExperts& experts)
      : first_(reinterpret_cast<const uint16_t*>(experts.first.data)),
        stride_(static_cast<int64_t>(experts.stride_bytes / sizeof(uint16_t))),
        num_cols_(static_cast<int32_t>(experts.first.num_cols)) {}

  static constexpr int kEights = 1;
  __device__ static int num_units(int columns) { return columns / 8; }
  __device__ static int eight(int unit, int /*i*/) { return unit * 8; }

  struct Row {
    const uint16_t* numbers;

    __device__ float add(int unit, const UnitOfX<1>& x, float sum) const {
      float values[8];
      unpack(reinterpret_cast<const Bf16x8*>(numbers)[unit], values);  // one load
      return add_eight(x.values[0], values, sum);
    }
  };

  __device__ Row row(int64_t expert, int64_t row) const {
    return {first_ + expert * stride_ + row * num_cols_};
  }

 private:
  const uint16_t* first_;
  int64_t stride_;
  int32_t num_cols_;
};

// kEightsOfUnit: 2, or 1 for rows that are no multiples of 16 columns.
template <int kEightsOfUnit>
class E4m3Rows {
 public:
  explicit E4m3Rows(const PackedExperts& experts)
      : first_(reinterpret_cast<const uint8_t*>(experts.first.data)),
        stride_(static_cast<int64_t>(experts.stride_bytes)),
        scales_at_(reinterpret_cast<const std::byte*>(e4m3_scales(experts.first)) -
                   experts.first.data),
        scales_(e4m3_scale_layout(experts.first.format, experts.first.num_rows,
                                  experts.first.num_cols)),
        num_cols_(static_cast<int32_t>(experts.first.num_cols)) {}

  static constexpr int kEights = kEightsOfUnit;
  __device__ static int num_units(int columns) { return columns / (8 * kEights); }
  __device__ static int eight(int unit, int i) { return (unit * kEights + i) * 8; }

  struct Row {
    const uint8_t* codes;
    const float* scales;
    int64_t group_stride;

    __device__ float add(int unit, const UnitOfX<kEights>& x, float sum) const {
      constexpr uint32_t kExponentOfOne = 127;
      struct alignas(8 * kEights) Codes {
        uint2 eights[kEights];
      };
      const Codes read = reinterpret_cast<const Codes*>(codes)[unit];  // one load
      float of_unit = 0.0f;
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float values[8];
        unpack(read_e4m3(read.eights[i], e4m3_factors(kExponentOfOne)), values);
        of_unit = add_eight(x.values[i], values, of_unit);
      }
      return __fmaf_rn(of_unit, scales[eight(unit, 0) / kScaleGroup * group_stride], sum);
    }
  };

  __device__ Row row(int64_t expert, int64_t row) const {
    const uint8_t* mine = first_ + expert * stride_;
    return {.codes = mine + row * num_cols_,
            .scales = reinterpret_cast<const float*>(mine + scales_at_) +
                      (row >> scales_.row_shift) * scales_.row_stride,
            .group_stride = scales_.group_stride};
  }

 private:
  const uint8_t* first_;
  int64_t stride_;
  int64_t scales_at_;
  E4m3ScaleLayout scales_;
  int32_t num_cols_;
};

class Uint4Rows {
 public:
  explicit Uint4Rows(const PackedExperts& experts)
      : first_(experts.first.data),
        stride_(static_cast<int64_t>(experts.stride_bytes)),
        layout_(
            uint4_layout(experts.first.format, experts.first.num_rows, experts.first.num_cols)) {}

  static constexpr int kEights = 4;
  __device__ static int num_units(int columns) {
    constexpr int kColumns = static_cast<int>(kUint4Columns);
    return (columns + kColumns - 1) / kColumns * (kColumns / 32);
  }
  __device__ static int eight(int unit, int i) { return unit / 4 * 128 + unit % 4 * 8 + i * 32; }

  // With groups of 128 columns a unit has one scale, with groups of 32 each eight has its own.
  struct Row {
    const uint4* units;
    const float* scales;
    const uint8_t* zeros;
    int32_t group_stride;
    int32_t group_cols;

    __device__ float add(int unit, const UnitOfX<4>& x, float sum) const {
      const uint4 read = units[unit];
      const uint32_t words[4] = {read.x, read.y, read.z, read.w};
      const int64_t first = int64_t{eight(unit, 0) / group_cols} * group_stride;
      if (group_cols == kUint4Columns) {
        const float large = with_zero(first);
        float of_unit = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) of_unit = add_word(words[i], large, x.values[i], of_unit);
        return __fmaf_rn(of_unit, scales[first], sum);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= x.num_eights) break;  // the rest of the last group, which has no scale
        const int64_t at = first + int64_t{i} * group_stride;
        sum = __fmaf_rn(add_word(words[i], with_zero(at), x.values[i], 0.0f), scales[at], sum);
      }
      return sum;
    }

   private:
    // The bits of an integer in those of 2^23 are their sum as f32; differences are exact.
    static constexpr uint32_t kLarge = 0x4b000000u;

    __device__ float with_zero(int64_t at) const { return __uint_as_float(kLarge | zeros[at]); }
    __device__ static float add_word(uint32_t word, float large, const float (&x)[8], float sum) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t bits = kLarge | (word >> (i % 2 * 16 + i / 2 * 4) & 15u);
        values[i] = __uint_as_float(bits) - large;
      }
      return add_eight(x, values, sum);
    }
  };

  __device__ Row row(int64_t expert, int64_t row) const {
    const std::byte* mine = first_ + expert * stride_;
    return {.units = reinterpret_cast<const uint4*>(mine + row * layout_.row_bytes),
            .scales = reinterpret_cast<const float*>(mine + layout_.scales_at) + row,
            .zeros = reinterpret_cast<const uint8_t*>(mine + layout_.zeros_at) + row,
            .group_stride = layout_.group_stride,
            .group_cols = layout_.group_cols};
  }

 private:
  const std::byte* first_;
  int64_t stride_;
  Uint4Layout layout_;
};

}  // namespace sluice::cuda
