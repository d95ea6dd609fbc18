// int8 rows: the arithmetic of a number of KvElement::kInt8 (ops/kv_rounding.h has the rows).
//
// An integer from -127 to 127 times the power of two of its row, the smallest with which the
// largest number of the row is one of them. An integer of seven bits times a power of two is
// exactly a bf16, normal or 0 since the scale stays where that is so; reading is thus exact, and
// all arithmetic on KV is that of bf16.
//
// Numbers are a sign and a magnitude of seven bits. The arithmetic is that of f32, where every step
// but the rounding is exact: loops over it become vectors.
//
// In an unnamed namespace, as e4m3.h. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {
namespace {

// A scale is a byte b for 2^(b - 127), the exponent of an f32. Below the least, numbers of a row
// would be subnormal in bf16; with more than the largest, 127 times it would be no bf16: the
// largest bf16 of all saturates.
inline constexpr int32_t kLeastInt8Scale = 1;
inline constexpr int32_t kLargestInt8Scale = 248;
inline constexpr uint32_t kLargestInt8 = 127;

// The scale of a row whose largest magnitude is the bf16 of these bits, without the sign: it
// becomes 64 to 127. A mantissa of all ones is 127.5 there, which would be rounded to 128.
inline constexpr uint8_t int8_scale_of(int16_t largest) {
  const int32_t exponent = (largest >> 7) + ((largest & 0x7f) == 0x7f ? 1 : 0);
  const int32_t scale = exponent < kLeastInt8Scale + 6 ? kLeastInt8Scale : exponent - 6;
  return static_cast<uint8_t>(scale > kLargestInt8Scale ? kLargestInt8Scale : scale);
}

// 2^(exponent - 127), for an exponent as f32 stores it.
inline constexpr float power_of_two(int32_t exponent) {
  return __builtin_bit_cast(float, exponent << 23);
}

// Rounds a bf16 to nearest even, given 1 / the scale; magnitudes above 127 times the scale become
// that. REQUIRES: finite.
inline constexpr uint8_t to_int8(uint16_t number, float inverse) {
  // Added to a number below 2^22, 2^23 leaves its integer, rounded to nearest even, in the
  // mantissa.
  constexpr float kInteger = 8388608.0f;
  const auto bits = static_cast<uint32_t>(number & 0x7fff) << 16;
  const float integer = __builtin_bit_cast(float, bits) * inverse + kInteger;
  const uint32_t magnitude = __builtin_bit_cast(uint32_t, integer) & 0xff;
  const uint32_t bounded = magnitude > kLargestInt8 ? kLargestInt8 : magnitude;
  return static_cast<uint8_t>((number >> 8 & 0x80) | bounded);
}

// The bf16 that a number of a row stands for.
inline constexpr uint16_t int8_to_bf16(uint8_t number, float factor) {
  const float value = static_cast<float>(number & 0x7f) * factor;
  const auto sign = static_cast<uint32_t>(number & 0x80) << 8;
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16 | sign);
}

}  // namespace
}  // namespace sluice
