// e4m3 rows: the keys and values of KvElement::kE4m3, as they are rounded and as they are read.
//
// A row is the key, or the value, of one token and KV head: numbers of e4m3 times one power of two,
// the smallest with which the largest number of the row does not exceed 448. What a row stands for
// is a normal bf16 or 0 in each number, since the scale stays where that is so; reading is thus
// exact, and all arithmetic on KV is that of bf16. A row that is not finite becomes NaN as a whole.
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
// beyond saturate. NaN as a whole: the byte with which debug builds fill freed memory.
inline constexpr uint32_t kLeastE4m3Scale = 11;
inline constexpr uint32_t kLargestE4m3Scale = 246;
inline constexpr uint32_t kNanE4m3Scale = 255;

// The scale of a row whose largest magnitude is the bf16 of these bits, without the sign.
// 448 = 1.75 * 2^8.
inline constexpr uint32_t e4m3_scale_of(uint32_t largest) {
  if (largest >= 0x7f80u) return kNanE4m3Scale;
  const uint32_t exponent = (largest >> 7) + ((largest & 0x7fu) > 0x60u ? 1u : 0u);
  const uint32_t scale = exponent < kLeastE4m3Scale + 8 ? kLeastE4m3Scale : exponent - 8;
  return scale > kLargestE4m3Scale ? kLargestE4m3Scale : scale;
}

// h - t: the bits of bf16 of the smallest number of e4m3 with this scale.
inline constexpr int16_t e4m3_origin(uint32_t scale) {
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
// finite, and a scale that is not NaN's.
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

// Rounds a row of bf16 and returns its scale.
inline uint8_t round_to_e4m3(const uint16_t* from, int32_t count, uint8_t* to) {
  int16_t largest = 0;
  for (int32_t d = 0; d < count; ++d) {
    largest = larger_of(largest, static_cast<int16_t>(from[d] & 0x7fff));
  }
  const uint32_t scale = e4m3_scale_of(static_cast<uint32_t>(largest));
  if (scale == kNanE4m3Scale) {
    for (int32_t d = 0; d < count; ++d) to[d] = 0;
  } else {
    const int16_t origin = e4m3_origin(scale);
    for (int32_t d = 0; d < count; ++d) to[d] = to_e4m3(from[d], origin);
  }
  return static_cast<uint8_t>(scale);
}

// The bf16 row that `from` with this scale stands for.
inline void read_e4m3(const uint8_t* from, uint8_t scale, int32_t count, uint16_t* to) {
  if (scale == kNanE4m3Scale) {
    for (int32_t d = 0; d < count; ++d) to[d] = 0x7fc0;
    return;
  }
  const int16_t origin = e4m3_origin(scale);
  for (int32_t d = 0; d < count; ++d) to[d] = e4m3_to_bf16(from[d], origin);
}

}  // namespace
}  // namespace sluice
