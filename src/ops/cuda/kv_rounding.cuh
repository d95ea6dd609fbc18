// Rounding rows of KV to elements of one byte on a GPU: the arithmetic of ops/e4m3.h and
// ops/int8_rows.h, with the same bits.
//
// Used by the kernel that writes KV. Thread rule: device code, pure functions of registers.
#pragma once

#include <cstdint>

#include "core/kv_element.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/kv_codec.cuh"

namespace sluice::cuda {

// The scale of a row whose largest magnitude is the bf16 of these bits.
template <KvElement kElement>
__device__ __forceinline__ uint32_t scale_of_row(uint32_t largest) {
  if (largest >= 0x7f80u) return kNanScale;
  if constexpr (kElement == KvElement::kInt8) {
    const uint32_t exponent = (largest >> 7) + ((largest & 0x7fu) == 0x7fu ? 1u : 0u);
    return min(max(exponent, 7u) - 6u, 248u);
  }
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

// The same to an integer; magnitudes above 127 become 127. Those above 2^23 never come.
__device__ __forceinline__ uint32_t to_int8(float value) {
  const uint32_t steps = __float_as_uint(__fadd_rn(fabsf(value), 8388608.0f)) & 0xffu;
  return (__float_as_uint(value) >> 24 & 0x80u) | min(steps, 127u);
}

// Eight neighbouring numbers of a row with this scale; those of a NaN row are 0.
template <KvElement kElement>
__device__ __forceinline__ uint2 round_numbers(const Bf16x8& row, uint32_t scale) {
  if (scale == kNanScale) return {0, 0};
  const float inverse = __uint_as_float((254u - scale) << 23);
  float values[8];
  unpack(row, values);
  uint32_t codes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float value = __fmul_rn(values[i], inverse);
    codes[i] = kElement == KvElement::kInt8 ? to_int8(value) : to_e4m3(value);
  }
  return {codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24,
          codes[4] | codes[5] << 8 | codes[6] << 16 | codes[7] << 24};
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
