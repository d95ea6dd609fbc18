// Copies the parts of heads to and from their places.
#include "model/head_padding.h"

#include <array>
#include <cstring>

#include "core/error.h"

namespace sluice {
namespace {

// Consecutive channels of a head: in a checkpoint, and in memory.
struct Part {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;
};

// The halves of the channels that rotate, then those of the others; the latter are empty where all
// rotate.
std::array<Part, 4> parts_of(const HeadPadding& padding) {
  const int64_t half = padding.head_dim / 2;
  const int64_t turning = padding.rotary_dim == 0 ? half : padding.rotary_dim / 2;
  const int64_t resting = half - turning;
  const int64_t second = padding.padded_head_dim / 2;
  return {{{.from = 0, .to = 0, .count = turning},
           {.from = turning, .to = second, .count = turning},
           {.from = 2 * turning, .to = turning, .count = resting},
           {.from = 2 * turning + resting, .to = second + turning, .count = resting}}};
}

}  // namespace

std::vector<std::byte> pad_heads(const HeadPadding& padding, std::span<const std::byte> units,
                                 size_t unit_bytes) {
  const size_t head_bytes = static_cast<size_t>(padding.head_dim) * unit_bytes;
  const size_t padded_bytes = static_cast<size_t>(padding.padded_head_dim) * unit_bytes;
  SLUICE_CHECK(units.size() % head_bytes == 0, "{} bytes", units.size());
  const size_t num_heads = units.size() / head_bytes;
  std::vector<std::byte> padded(num_heads * padded_bytes);  // zeros
  for (size_t head = 0; head < num_heads; ++head) {
    for (const Part& part : parts_of(padding)) {
      std::memcpy(padded.data() + head * padded_bytes + static_cast<size_t>(part.to) * unit_bytes,
                  units.data() + head * head_bytes + static_cast<size_t>(part.from) * unit_bytes,
                  static_cast<size_t>(part.count) * unit_bytes);
    }
  }
  return padded;
}

std::vector<float> unpad_heads(const HeadPadding& padding, const std::vector<float>& values) {
  const auto head_dim = static_cast<size_t>(padding.head_dim);
  const auto padded_head_dim = static_cast<size_t>(padding.padded_head_dim);
  SLUICE_CHECK(values.size() % padded_head_dim == 0, "{} values", values.size());
  const size_t num_heads = values.size() / padded_head_dim;
  std::vector<float> own(num_heads * head_dim);
  for (size_t head = 0; head < num_heads; ++head) {
    for (const Part& part : parts_of(padding)) {
      std::memcpy(own.data() + head * head_dim + part.from,
                  values.data() + head * padded_head_dim + part.to,
                  static_cast<size_t>(part.count) * sizeof(float));
    }
  }
  return own;
}

}  // namespace sluice
