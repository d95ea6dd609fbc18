// KvElement: the number format of the keys and values in KV blocks.
//
// Part of the shape of a block (ops/kv_blocks.h); the store's fingerprint and the memory plan take
// it from there. Thread rule: values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

enum class KvElement : uint8_t { kBFloat16 };

// Bytes of one number, without a scale (KvBlockShape has their place).
constexpr size_t kv_element_bytes(KvElement element) {
  switch (element) {
    case KvElement::kBFloat16:
      return 2;
  }
  return 0;
}

constexpr std::string_view kv_element_name(KvElement element) {
  switch (element) {
    case KvElement::kBFloat16:
      return "bf16";
  }
  return "?";
}

}  // namespace sluice
