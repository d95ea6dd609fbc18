// KvCodec: how codes of KV elements of one byte become bf16 on a GPU.
//
// A value in the parameters of kernels, so that one kernel reads all such elements. Thread rule:
// values only.
#pragma once

#include <cstdint>

#include "core/kv_element.h"
#include "ops/kv_blocks.h"

namespace sluice::cuda {

// A code is a sign and a magnitude of seven bits. Moved right by `shift`, the magnitude has the
// bits of a bf16, subnormal ones included, that is too small by a power of two. The products with
// 2^127 and with a factor of the row are exact and give what the code stands for.
struct KvCodec {
  uint32_t shift = 0;   // from bits 8 to 14 of 16
  uint32_t offset = 0;  // added to a row's scale in the place of the exponent: its factor
};

// Which halves of KV are codes; the others are bf16. Keys alone are never.
enum class KvCodes : uint8_t { kNone, kValues, kAll };
template <KvCodes kCodes>
inline constexpr bool kHasCodedKeys = kCodes == KvCodes::kAll;
template <KvCodes kCodes>
inline constexpr bool kHasCodedValues = kCodes != KvCodes::kNone;

inline KvCodes kv_codes(const KvBlockShape& shape) {
  if (shape.element == KvElement::kBFloat16) return KvCodes::kNone;
  return shape.keys_in_bf16 ? KvCodes::kValues : KvCodes::kAll;
}

// For the host, and for constants of the device's code. REQUIRES: an element with scales.
constexpr KvCodec kv_codec(KvElement element) {
  // The bits of bf16 count 2^-133: 2^(scale - 127 + 133 - 127) is missing beside 2^127.
  if (element == KvElement::kInt8) return {.shift = 8, .offset = 6u << 7};
  // A bf16 has the same mantissa, and its exponent makes it 2^120 times smaller.
  return {.shift = 4, .offset = 0u - (7u << 7)};
}

}  // namespace sluice::cuda
