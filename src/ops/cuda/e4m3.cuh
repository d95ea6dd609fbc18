// e4m3 rows on a GPU: the arithmetic of ops/e4m3.h, with the same bits.
//
// In floats instead of integers: a GPU multiplies two bf16 at once, exactly where only an exponent
// changes, and has no minimum of 16-bit integers on all architectures. GPUs from sm_89 on convert
// e4m3 in one instruction, but to f16, whose range is too small for the scales.
//
// Used by the kernels that write or read KV of KvElement::kE4m3, and by those of weights in e4m3.
// Thread rule: device code, pure functions of registers.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "ops/cuda/common.cuh"

namespace sluice::cuda {

inline constexpr uint32_t kNanE4m3Scale = 255;

// Tokens of KV in units of 16-bit elements, of keys or of values; `tokens` are whole tiles of 16.
template <bool kFp8>
__device__ __forceinline__ int32_t kv_elements(int32_t tokens, int32_t head_dim) {
  if constexpr (kFp8) return tokens / 2 * (head_dim + 1);
  return tokens * head_dim;
}

// 2^(scale - 127), or NaN, as both bf16 of a pair.
__device__ __forceinline__ uint32_t e4m3_factors(uint32_t scale) {
  const uint32_t factor = scale << 7 | (scale == kNanE4m3Scale ? 0x40u : 0u);
  return factor | factor << 16;
}

// Two numbers, in the upper bytes of two halves, times their factor. Their bits are those of bf16
// 2^120 times smaller, subnormal ones included; both products are exact.
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t halves, uint32_t factors) {
  const uint32_t pair = (halves & 0x80008000u) | (halves >> 4 & 0x07f007f0u);
  const uint32_t exponents = 0x7b807b80u;
  const __nv_bfloat162 values =
      __hmul2(__hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                      *reinterpret_cast<const __nv_bfloat162*>(&exponents)),
              *reinterpret_cast<const __nv_bfloat162*>(&factors));
  return *reinterpret_cast<const uint32_t*>(&values);
}

// The bf16 that eight neighbouring numbers stand for.
__device__ __forceinline__ Bf16x8 read_e4m3(uint2 numbers, uint32_t factors) {
  return {{e4m3_pair(__byte_perm(numbers.x, 0, 0x1404), factors),
           e4m3_pair(__byte_perm(numbers.x, 0, 0x3424), factors),
           e4m3_pair(__byte_perm(numbers.y, 0, 0x1404), factors),
           e4m3_pair(__byte_perm(numbers.y, 0, 0x3424), factors)}};
}

// The same of one number, as f32.
__device__ __forceinline__ float read_e4m3(uint8_t number, uint32_t factors) {
  return __uint_as_float(e4m3_pair(static_cast<uint32_t>(number) << 8, factors) << 16);
}

// The scale of a row whose largest magnitude is the bf16 of these bits.
__device__ __forceinline__ uint32_t e4m3_scale_of(uint32_t largest) {
  if (largest >= 0x7f80u) return kNanE4m3Scale;
  const uint32_t exponent = (largest >> 7) + ((largest & 0x7fu) > 0x60u ? 1u : 0u);
  return min(max(exponent, 19u) - 8u, 246u);
}

// Rounds one number, scaled, to nearest even; magnitudes above 448 become 448. REQUIRES: not NaN.
__device__ __forceinline__ uint32_t to_e4m3(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  const uint32_t normal = min(rounded - (120u << 3), 0x7eu);
  // Below 2^-6 the steps are 2^-9, as those of f32 above 2^14.
  const uint32_t steps =
      __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 16384.0f)) - 0x46800000u;
  return (bits >> 24 & 0x80u) | (magnitude < 0x3c800000u ? steps : normal);
}

// Eight neighbouring numbers of a row with this scale; those of a NaN row are 0.
__device__ __forceinline__ uint2 round_to_e4m3(const Bf16x8& row, uint32_t scale) {
  if (scale == kNanE4m3Scale) return {0, 0};
  const float inverse = __uint_as_float((254u - scale) << 23);
  float values[8];
  unpack(row, values);
  uint32_t numbers[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) numbers[i] = to_e4m3(__fmul_rn(values[i], inverse));
  return {numbers[0] | numbers[1] << 8 | numbers[2] << 16 | numbers[3] << 24,
          numbers[4] | numbers[5] << 8 | numbers[6] << 16 | numbers[7] << 24};
}

// The larger of `largest` and the magnitudes of eight numbers, as bits of bf16.
__device__ __forceinline__ uint32_t largest_magnitude(const Bf16x8& row, uint32_t largest) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t magnitudes = row.pairs[i] & 0x7fff7fffu;
    largest = max(largest, max(magnitudes & 0xffffu, magnitudes >> 16));
  }
  return largest;
}

}  // namespace sluice::cuda
