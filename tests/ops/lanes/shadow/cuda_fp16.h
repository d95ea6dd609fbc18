// f16 for lanes: what kernels use of CUDA's header of that name.
//
// Thread rule: pure functions.
#pragma once

#include "ops/lanes/lanes.h"

struct __half {
  unsigned short bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

// To nearest, ties to even; what is too large is infinity.
inline __half __float2half_rn(float value) {
  const float magnitude = std::abs(value);
  const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
  const auto made = [&](unsigned bits) { return __half{static_cast<unsigned short>(sign | bits)}; };
  if (std::isnan(value)) return made(0x7e00);
  if (magnitude >= 65520.0f) return made(0x7c00);
  // In units of the last place of its power of two, of subnormal numbers that of 2^-14.
  const int exponent = std::max(magnitude == 0 ? -14 : std::ilogb(magnitude), -14);
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return made((static_cast<unsigned>(exponent + 14) << 10) + units);
}
inline __half2 __floats2half2_rn(float low, float high) {
  return {__float2half_rn(low), __float2half_rn(high)};
}
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(__half value) {
  const unsigned fraction = value.bits & 1023u;
  const int exponent = value.bits >> 10 & 31;
  float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? fraction : 1024u + fraction),
                               std::max(exponent, 1) - 25);
  if (exponent == 31) magnitude = fraction == 0 ? INFINITY : NAN;
  return value.bits & 0x8000u ? -magnitude : magnitude;
}
