// KvElement: the number format of the keys and values in KV blocks.
//
// Part of the shape of a block (ops/kv_blocks.h); the store's fingerprint and the memory plan take
// it from there. Thread rule: values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// kE4m3: FP8 with 4 bits of exponent and 3 of mantissa, times a power of two, which each key and
// each value of a head has for itself (ops/e4m3.h). kInt8: integers from -127 to 127 likewise
// (ops/int8_rows.h). Such products are exactly bf16.
enum class KvElement : uint8_t { kBFloat16, kE4m3, kInt8 };

// Bytes of one number, without a scale (KvBlockShape has their place).
constexpr size_t kv_element_bytes(KvElement element) {
  switch (element) {
    case KvElement::kBFloat16:
      return 2;
    case KvElement::kE4m3:
    case KvElement::kInt8:
      return 1;
  }
  return 0;
}

// Bytes of the scale of one key, or value, of one KV head.
constexpr size_t kv_scale_bytes(KvElement element) {
  return element == KvElement::kBFloat16 ? 0 : 1;
}

constexpr std::string_view kv_element_name(KvElement element) {
  switch (element) {
    case KvElement::kBFloat16:
      return "bf16";
    case KvElement::kE4m3:
      return "fp8_e4m3";
    case KvElement::kInt8:
      return "int8";
  }
  return "?";
}

}  // namespace sluice
