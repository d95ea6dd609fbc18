// int8 rows: the keys and values of KvElement::kInt8, as they are rounded and as they are read.
//
// A row is the key, or the value, of one token and KV head: integers from -127 to 127 times one
// power of two, the smallest with which the largest number of the row is one of them. An integer of
// seven bits times a power of two is exactly a bf16, normal or 0 since the scale stays where that
// is so; reading is thus exact, and all arithmetic on KV is that of bf16. A row that is not finite
// becomes NaN as a whole.
//
// Numbers are a sign and a magnitude of seven bits. The arithmetic is that of f32, where every step
// but the rounding is exact: loops over it become vectors.
//
// In an unnamed namespace, since files that are compiled for one ISA include it (see
// matmul/kernel.h). Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {
namespace {

// A scale is a byte b for 2^(b - 127), the exponent of an f32. Below the least, numbers of a row
// would be subnormal in bf16; with more than the largest, 127 times it would be no bf16: the
// largest bf16 of all saturates. NaN as a whole: the byte with which debug builds fill freed
// memory.
inline constexpr uint32_t kLeastInt8Scale = 1;
inline constexpr uint32_t kLargestInt8Scale = 248;
inline constexpr uint32_t kNanInt8Scale = 255;
inline constexpr uint32_t kLargestInt8 = 127;

// The scale of a row whose largest magnitude is the bf16 of these bits, without the sign: it
// becomes 64 to 127. A mantissa of all ones is 127.5 there, which would be rounded to 128.
inline constexpr uint32_t int8_scale_of(uint32_t largest) {
  if (largest >= 0x7f80u) return kNanInt8Scale;
  const uint32_t exponent = (largest >> 7) + ((largest & 0x7fu) == 0x7fu ? 1u : 0u);
  const uint32_t scale = exponent < kLeastInt8Scale + 6 ? kLeastInt8Scale : exponent - 6;
  return scale > kLargestInt8Scale ? kLargestInt8Scale : scale;
}

inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline float int8_scale(uint32_t scale) { return float_of(scale << 23); }

// Rounds a row of bf16 to nearest even and returns its scale.
inline uint8_t round_to_int8(const uint16_t* from, int32_t count, uint8_t* to) {
  int16_t largest = 0;
  for (int32_t d = 0; d < count; ++d) {
    const auto magnitude = static_cast<int16_t>(from[d] & 0x7fff);
    largest = magnitude > largest ? magnitude : largest;
  }
  const uint32_t scale = int8_scale_of(static_cast<uint32_t>(largest));
  if (scale == kNanInt8Scale) {
    for (int32_t d = 0; d < count; ++d) to[d] = 0;
    return static_cast<uint8_t>(scale);
  }
  const float inverse = int8_scale(254 - scale);
  // Added to a number below 2^22, 2^23 leaves its integer, rounded to nearest even, in the
  // mantissa.
  constexpr float kInteger = 8388608.0f;
  for (int32_t d = 0; d < count; ++d) {
    const auto bits = static_cast<uint32_t>(from[d] & 0x7fff) << 16;
    const float integer = float_of(bits) * inverse + kInteger;
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, integer) & 0xff;
    const uint32_t bounded = magnitude > kLargestInt8 ? kLargestInt8 : magnitude;
    to[d] = static_cast<uint8_t>((from[d] >> 8 & 0x80) | bounded);
  }
  return static_cast<uint8_t>(scale);
}

// The bf16 row that `from` with this scale stands for.
inline void read_int8(const uint8_t* from, uint8_t scale, int32_t count, uint16_t* to) {
  if (scale == kNanInt8Scale) {
    for (int32_t d = 0; d < count; ++d) to[d] = 0x7fc0;
    return;
  }
  const float factor = int8_scale(scale);
  for (int32_t d = 0; d < count; ++d) {
    const float value = static_cast<float>(from[d] & 0x7f) * factor;
    const auto sign = static_cast<uint32_t>(from[d] & 0x80) << 8;
    to[d] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16 | sign);
  }
}

}  // namespace
}  // namespace sluice
