// A piece of 8 channels of a key or value in a block, in bf16 or in codes.
//
// Used by kernels that read single rows: pages/page_bounds.cu and tiles/gather_columns.cu. Thread
// rule: device code.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/kv_codec.cuh"
#include "ops/kv_blocks.h"

namespace sluice::cuda {

// As it is loaded, so that several loads are in flight, and as the bf16 that it stands for.
template <bool kCoded>
struct KvPiece {
  Bf16x8 numbers;

  // `half`: the keys, or the values, of a head in a block; `element`: of the row of `token`.
  __device__ __forceinline__ void load(const std::byte* half, int32_t token, int32_t element,
                                       int32_t head_dim) {
    numbers = *reinterpret_cast<const Bf16x8*>(half + (token * head_dim + element) * 2);
  }
  __device__ __forceinline__ Bf16x8 values(const KvCodec&) const { return numbers; }
};

template <>
struct KvPiece<true> {
  uint2 codes;
  uint32_t scale;

  __device__ __forceinline__ void load(const std::byte* half, int32_t token, int32_t element,
                                       int32_t head_dim) {
    const int32_t in_tile = token % kKvScaleTile;
    const std::byte* tile = half + (token - in_tile) * (head_dim + 1);
    codes = *reinterpret_cast<const uint2*>(tile + in_tile * head_dim + element);
    scale = static_cast<uint32_t>(tile[kKvScaleTile * head_dim + in_tile]);
  }
  __device__ __forceinline__ Bf16x8 values(const KvCodec& codec) const {
    return turn_codes(codec, codes, row_factors(codec, scale));
  }
};

}  // namespace sluice::cuda
