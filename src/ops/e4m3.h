// e4m3: its numbers in KV of KvElement::kE4m3 (ops/kv_rounding.h has the rows) and in weights.
//
// A number of KV is one of e4m3 times the power of two of its row, the smallest with which the
// largest number of the row does not exceed 448. That is a normal bf16 or 0, since the scale stays
// where it is so; reading is thus exact, and all arithmetic on KV is that of bf16.
//
// Both directions are integer arithmetic on the bits of bf16, 16 bits wide and without branches, so
// that the compiler turns loops over it into vectors. With magnitudes c of e4m3 and h of bf16, and
// t = h - 128 (scale - 9), which counts steps of bf16 from the smallest number of e4m3 on:
//   t = min(128 c - 128, 64 c, 32 c + 128, 16 c + 256), for c > 0: subnormal numbers are the first
//   three lines, whose steps of c are 128, 64 and 32 steps of bf16; all others the last.
// Rounding is the inverse of each line, to nearest even, and the largest of them.
//
// In an unnamed namespace, since files that are compiled for one ISA include it (see
// matmul/kernel.h). Thread rule: pure functions.
// Source: Micikevicius et al. 2022, arXiv 2209.05433 (E4M3, as OCP's FP8 has it: no infinity).
#pragma once

#include <cstdint>

namespace sluice {
namespace {

// A scale is a byte b for 2^(b - 127), the exponent of an f32. Below the least, numbers of a row
// would be subnormal in bf16; with more than the largest, 448 times it would be no bf16: numbers
// beyond saturate.
inline constexpr int32_t kLeastE4m3Scale = 11;
inline constexpr int32_t kLargestE4m3Scale = 246;

// The scale of a row whose largest magnitude is the bf16 of these bits, without the sign.
// 448 = 1.75 * 2^8.
inline constexpr uint8_t e4m3_scale_of(int16_t largest) {
  const int32_t exponent = (largest >> 7) + ((largest & 0x7f) > 0x60 ? 1 : 0);
  const int32_t scale = exponent < kLeastE4m3Scale + 8 ? kLeastE4m3Scale : exponent - 8;
  return static_cast<uint8_t>(scale > kLargestE4m3Scale ? kLargestE4m3Scale : scale);
}

// h - t: the bits of bf16 of the smallest number of e4m3 with this scale.
inline constexpr int16_t e4m3_origin(int32_t scale) {
  return static_cast<int16_t>((scale - 9) << 7);
}

inline constexpr int16_t larger_of(int16_t a, int16_t b) { return a > b ? a : b; }
inline constexpr int16_t smaller_of(int16_t a, int16_t b) { return a < b ? a : b; }

// t / 2^kBits to nearest even.
template <int kBits>
inline constexpr int16_t rounded_shift(int16_t t) {
  const auto odd = static_cast<int16_t>(t >> kBits & 1);
  return static_cast<int16_t>(static_cast<int16_t>(t + ((1 << (kBits - 1)) - 1) + odd) >> kBits);
}

// Rounds a bf16 to nearest even; magnitudes above 448 times the scale become that. REQUIRES:
// finite.
inline constexpr uint8_t to_e4m3(uint16_t number, int16_t origin) {
  const auto t = static_cast<int16_t>(static_cast<int16_t>(number & 0x7fff) - origin);
  // Half of the smallest number is a tie, which goes to 0; what is above goes to the smallest.
  int16_t code = t > -128 ? 1 : 0;
  code = larger_of(code, rounded_shift<7>(static_cast<int16_t>(t + 128)));
  code = larger_of(code, rounded_shift<6>(t));
  code = larger_of(code, rounded_shift<5>(static_cast<int16_t>(t - 128)));
  code = larger_of(code, rounded_shift<4>(static_cast<int16_t>(t - 256)));
  code = smaller_of(code, 0x7e);
  return static_cast<uint8_t>((number >> 8 & 0x80) | code);
}

// The bf16 that a number of a row stands for.
inline constexpr uint16_t e4m3_to_bf16(uint8_t number, int16_t origin) {
  const auto code = static_cast<int16_t>(number & 0x7f);
  int16_t t = smaller_of(static_cast<int16_t>((code << 7) - 128), static_cast<int16_t>(code << 6));
  t = smaller_of(t, static_cast<int16_t>((code << 5) + 128));
  t = smaller_of(t, static_cast<int16_t>((code << 4) + 256));
  const auto magnitude = static_cast<int16_t>(code == 0 ? 0 : t + origin);
  return static_cast<uint16_t>((number & 0x80) << 8 | magnitude);
}

}  // namespace
}  // namespace sluice
