// exp and ln of f32, and what is made of them, that give the same bits on every CPU and on GPUs:
// plain multiplications and additions, each rounded, without branches, so that the compiler turns
// loops over them into vectors.
//
// Used by CPU kernels through ops/cpu/scalar_math.h, and by select_tiles and choose_patterns on
// both devices. The build forbids contraction of host code; a .cu file that includes this is
// compiled without contraction (--fmad=false) and with --expt-relaxed-constexpr. In an unnamed
// namespace, since files that are compiled for one ISA include it (see matmul/kernel.h). Thread
// rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {
namespace {

// std::bit_cast without its header: <bit> would bring inline functions into ISA-specific files.
template <typename To, typename From>
inline constexpr To bit_cast(From value) {
  return __builtin_bit_cast(To, value);
}

// e^x within 2 units in the last place; 0 below -87.33 and infinity above 88.37, NaN for NaN.
// Source: Cephes expf (Moshier): e^x = 2^n * e^r with |r| <= ln(2) / 2.
inline constexpr float fast_exp(float x) {
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

// ln x within 2 units in the last place, for normal positive x; NaN for everything else, infinity
// included.
// Source: Cephes logf (Moshier): ln x = n ln(2) + ln(1 + r) with 1 + r in [sqrt(1/2), sqrt(2)).
inline constexpr float fast_log(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const float half = bit_cast<float>((bits & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
  const bool is_low = half < 0.707106781186547524f;
  const float r = is_low ? half + half - 1.0f : half - 1.0f;
  const float n =
      static_cast<float>(static_cast<int32_t>(bits >> 23) - 126) - (is_low ? 1.0f : 0.0f);
  float poly = 7.0376836292e-2f;
  poly = poly * r - 1.1514610310e-1f;
  poly = poly * r + 1.1676998740e-1f;
  poly = poly * r - 1.2420140846e-1f;
  poly = poly * r + 1.4249322787e-1f;
  poly = poly * r - 1.6668057665e-1f;
  poly = poly * r + 2.0000714765e-1f;
  poly = poly * r - 2.4999993993e-1f;
  poly = poly * r + 3.3333331174e-1f;
  const float square = r * r;
  float tail = poly * r * square;
  tail = tail + n * -2.12194440e-4f;
  tail = tail - 0.5f * square;
  const float result = (r + tail) + n * 0.693359375f;
  const bool is_normal = bits >= 0x00800000u && bits < 0x7f800000u;
  return is_normal ? result : bit_cast<float>(0x7fc00000u);
}

// 1 / (1 + e^-x).
inline constexpr float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

// ln(1 + x) for x from 0 to 1. The rounding of 1 + x is taken back by the quotient, so that small x
// keep all their bits. Source: Hewlett-Packard 1982, HP-15C Advanced Functions Handbook.
inline constexpr float fast_log1p(float x) {
  const float sum = 1.0f + x;
  const float rounded = sum - 1.0f;
  return rounded == 0.0f ? x : fast_log(sum) * (x / rounded);
}

// ln(1 + e^x), without overflow.
inline constexpr float fast_softplus(float x) {
  const float least = x > 0.0f ? x : 0.0f;
  return least + fast_log1p(fast_exp(x > 0.0f ? -x : x));
}

// a ln(a / m) + b ln(b / m), m = (a + b) / 2, of two shares in a common unit: what they add to
// twice the Jensen-Shannon divergence, in that unit, rounded down. It is not negative, though
// rounding may make it so. 0 ln 0 = 0.
inline constexpr int64_t divergence_term(uint32_t a, uint32_t b) {
  const auto x = static_cast<float>(a);
  const auto y = static_cast<float>(b);
  const float mean = 0.5f * (x + y);
  const float of_a = a > 0 ? x * fast_log(x / mean) : 0.0f;
  const float of_b = b > 0 ? y * fast_log(y / mean) : 0.0f;
  const float sum = of_a + of_b;
  return sum > 0.0f ? static_cast<int64_t>(sum) : 0;
}

}  // namespace
}  // namespace sluice
