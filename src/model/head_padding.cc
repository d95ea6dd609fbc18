// Copies the halves of heads to and from their padded places.
#include "model/head_padding.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace sluice {

std::vector<std::byte> pad_heads(const HeadPadding& padding, std::span<const std::byte> units,
                                 size_t unit_bytes) {
  const size_t half_bytes = static_cast<size_t>(padding.head_dim / 2) * unit_bytes;
  const size_t padded_half_bytes = static_cast<size_t>(padding.padded_head_dim / 2) * unit_bytes;
  SLUICE_CHECK(units.size() % (2 * half_bytes) == 0, "{} bytes", units.size());
  // Half heads are consecutive on both sides, so half i needs no division into head and side.
  const size_t num_halves = units.size() / half_bytes;
  std::vector<std::byte> padded(num_halves * padded_half_bytes);  // zeros
  for (size_t i = 0; i < num_halves; ++i) {
    std::memcpy(padded.data() + i * padded_half_bytes, units.data() + i * half_bytes, half_bytes);
  }
  return padded;
}

std::vector<float> unpad_heads(const HeadPadding& padding, const std::vector<float>& values) {
  const int64_t half = padding.head_dim / 2;
  const int64_t padded_half = padding.padded_head_dim / 2;
  SLUICE_CHECK(static_cast<int64_t>(values.size()) % (2 * padded_half) == 0, "{} values",
               values.size());
  std::vector<float> own;
  for (auto begin = values.begin(); begin != values.end(); begin += padded_half) {
    own.insert(own.end(), begin, begin + half);
  }
  return own;
}

}  // namespace sluice
