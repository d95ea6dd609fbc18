// exp and bf16 rounding without branches, so that the compiler turns loops over them into vectors.
//
// Used by the memory-bound ops and by sampling. Plain multiplications and additions only (the build
// forbids contraction), hence the same bits on every ISA. In an unnamed namespace, since files that
// are compiled for one ISA include it (see matmul/kernel.h). Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice::cpu {
namespace {

// std::bit_cast without its header: <bit> would bring inline functions into ISA-specific files.
template <typename To, typename From>
inline To bit_cast(From value) {
  return __builtin_bit_cast(To, value);
}

// e^x within 2 units in the last place; 0 below -87.33 and infinity above 88.37, NaN for NaN.
// Source: Cephes expf (Moshier): e^x = 2^n * e^r with |r| <= ln(2) / 2.
inline float fast_exp(float x) {
  constexpr float kLow = -87.33f;
  constexpr float kHigh = 88.37f;
  float t = x > kHigh ? kHigh : x;
  t = t < kLow ? kLow : t;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer; its low bits are that integer.
  constexpr float kMagic = 12582912.0f;
  const float shifted = t * 1.44269504088896341f + kMagic;
  const float n = shifted - kMagic;
  const float r = (t - n * 0.693359375f) - n * -2.12194440e-4f;
  float poly = 1.9875691500e-4f;
  poly = poly * r + 1.3981999507e-3f;
  poly = poly * r + 8.3334519073e-3f;
  poly = poly * r + 4.1665795894e-2f;
  poly = poly * r + 1.6666665459e-1f;
  poly = poly * r + 5.0000001201e-1f;
  poly = poly * (r * r) + r + 1.0f;
  // 2^n: the shift drops the upper bits of 1.5 * 2^23 and puts n + 127 into the exponent's place.
  const uint32_t exponent = (bit_cast<uint32_t>(shifted) + 127u) << 23;
  float result = poly * bit_cast<float>(exponent);
  result = x < kLow ? 0.0f : result;
  return x > kHigh ? bit_cast<float>(0x7f800000u) : result;
}

// BFloat16(value) without a branch.
inline uint16_t round_to_bf16(float value) {
  const uint32_t raw = bit_cast<uint32_t>(value);
  const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
  const bool is_nan = (raw & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? ((raw >> 16) | 0x40u) : rounded);
}

// Exact: bf16 is the upper half of f32.
inline float bf16_to_float(uint16_t bits) {
  return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The sum of 16 partial sums in the order that halving gives: 8 + 8, 4 + 4, ...
inline float sum_lanes(float (&lanes)[16]) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace
}  // namespace sluice::cpu
