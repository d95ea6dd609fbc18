// DType and the two 16-bit float formats as plain structs.
//
// Used by everything that names the type of an element. Thread rule: values only.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// kE4m3 is that of checkpoints: read as bytes, which WeightFormat gives a meaning.
enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kI64, kU8, kE4m3 };

// Bytes of one element.
constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF16:
      return 2;
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kU8:
    case DType::kE4m3:
      return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kE4m3:
      return "f8_e4m3";
  }
  return "?";
}

// bfloat16: the upper half of a float. Rounds to nearest even; a NaN stays a quiet NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t raw = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) {
      bits = static_cast<uint16_t>((raw >> 16) | 0x0040u);  // keep it a NaN after truncation
    } else {
      bits = static_cast<uint16_t>((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  static BFloat16 from_bits(uint16_t bits) {
    BFloat16 value;
    value.bits = bits;
    return value;
  }
};
static_assert(sizeof(BFloat16) == 2);

// IEEE half precision, only ever read (F16 checkpoints are converted to bf16 while loading).
struct Float16 {
  uint16_t bits = 0;
  explicit operator float() const;
};
static_assert(sizeof(Float16) == 2);

inline Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 0xffu : exponent + 112;  // 127 - 15
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// The DType of a C++ element type.
template <typename T>
inline constexpr DType kDTypeOf = DType::kU8;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<Float16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kI64;

}  // namespace sluice
