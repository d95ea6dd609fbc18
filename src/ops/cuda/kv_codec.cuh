// Reading KV elements of one byte on a GPU: the arithmetic of ops/kv_rounding.h, with the same
// bits.
//
// In floats instead of integers: a GPU multiplies two bf16 at once, exactly where only an exponent
// changes, and has no minimum of 16-bit integers on all architectures. GPUs from sm_89 on convert
// e4m3 in one instruction, but to f16, whose range is too small for the scales.
//
// Thread rule: device code, pure functions of registers.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "ops/cuda/common.cuh"
#include "ops/cuda/kv_codec.h"

namespace sluice::cuda {

inline constexpr uint32_t kNanScale = 255;

// Tokens of KV in units of 16-bit elements, of keys or of values; `tokens` are whole tiles of 16.
template <bool kCoded>
__device__ __forceinline__ int32_t kv_elements(int32_t tokens, int32_t head_dim) {
  if constexpr (kCoded) return tokens / 2 * (head_dim + 1);
  return tokens * head_dim;
}

// What the codes of a row are multiplied by beside 2^127, or NaN, as both bf16 of a pair.
__device__ __forceinline__ uint32_t row_factors(const KvCodec& codec, uint32_t scale) {
  const uint32_t factor = scale == kNanScale ? 0x7fc0u : (scale << 7) + codec.offset;
  return factor | factor << 16;
}

// Two codes, in the upper bytes of two halves.
__device__ __forceinline__ uint32_t turn_pair(const KvCodec& codec, uint32_t halves,
                                              uint32_t factors) {
  const uint32_t pair = (halves & 0x80008000u) | (halves & 0x7f007f00u) >> codec.shift;
  const uint32_t power = 0x7f007f00u;  // 2^127
  const __nv_bfloat162 values = __hmul2(__hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                                *reinterpret_cast<const __nv_bfloat162*>(&power)),
                                        *reinterpret_cast<const __nv_bfloat162*>(&factors));
  return *reinterpret_cast<const uint32_t*>(&values);
}

// The bf16 that eight neighbouring codes stand for.
__device__ __forceinline__ Bf16x8 turn_codes(const KvCodec& codec, uint2 codes, uint32_t factors) {
  return {{turn_pair(codec, __byte_perm(codes.x, 0, 0x1404), factors),
           turn_pair(codec, __byte_perm(codes.x, 0, 0x3424), factors),
           turn_pair(codec, __byte_perm(codes.y, 0, 0x1404), factors),
           turn_pair(codec, __byte_perm(codes.y, 0, 0x3424), factors)}};
}

// The same of one code, as f32.
__device__ __forceinline__ float turn_code(const KvCodec& codec, uint8_t code, uint32_t factors) {
  return __uint_as_float(turn_pair(codec, static_cast<uint32_t>(code) << 8, factors) << 16);
}

}  // namespace sluice::cuda
