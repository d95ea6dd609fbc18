// Rows of weights in bf16 and e4m3, eight columns at a time, for kernels that read few of them at
// once. Codes have a faster kernel where their rows are multiples of 16 columns (skinny_ring.cuh).
//
// A warp's lanes take neighbouring eights, so that a row is read in whole lines. Numbers become f32
// in registers; a scale multiplies the sum of eight products. Used by experts/each_pair.cu. Thread
// rule: device code.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/op_memory.h"
#include "ops/experts/experts.h"

namespace sluice::cuda {

// Every kind of rows has row(expert, row), which has add(k, x, sum): sum plus the products with
// columns k to k + 7, k a multiple of 8.
class Bf16Rows {
 public:
  explicit Bf16Rows(const PackedExperts& experts)
      : first_(reinterpret_cast<const uint16_t*>(experts.first.data)),
        stride_(static_cast<int64_t>(experts.stride_bytes / sizeof(uint16_t))),
        num_cols_(static_cast<int32_t>(experts.first.num_cols)) {}

  struct Row {
    const uint16_t* numbers;

    __device__ float add(int k, const float (&x)[8], float sum) const {
      const Bf16x8 eight = *reinterpret_cast<const Bf16x8*>(numbers + k);  // one load
      float values[8];
      unpack(eight, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], values[i], sum);
      return sum;
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

  struct Row {
    const uint8_t* codes;
    const float* scales;
    int64_t group_stride;

    __device__ float add(int k, const float (&x)[8], float sum) const {
      float values[8];
      unpack(read_e4m3(*reinterpret_cast<const uint2*>(codes + k)), values);
      float of_eight = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) of_eight = __fmaf_rn(x[i], values[i], of_eight);
      return __fmaf_rn(of_eight, scales[k / kScaleGroup * group_stride], sum);
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

}  // namespace sluice::cuda
