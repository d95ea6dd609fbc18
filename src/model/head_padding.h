// Heads whose width is no multiple of 16, as they lie in memory.
//
// Kernels and KV blocks take heads of whole vectors. A head of another width is widened with
// channels of zero: channel c of its first half stays c, channel c of its second half goes to
// padded / 2 + c, where rope looks for the partner of c. The weights make the added channels of q,
// k and v zero, so they add nothing to a score and nothing to a norm, and the output projection has
// columns of zeros for them. Used by model/weights and, to take the channels away again, by traces.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct HeadPadding {
  int32_t head_dim = 0;         // even
  int32_t padded_head_dim = 0;  // even, at least head_dim

  bool present() const { return head_dim != padded_head_dim; }
  // Units (rows, columns) of padded heads that `num_units` of the model's become.
  int64_t padded_units(int64_t num_units) const { return num_units / head_dim * padded_head_dim; }
};

// `units` is whole heads of `unit_bytes` each: rows of a weight, or single elements. Returns them
// with zeros between. Cost: one copy.
std::vector<std::byte> pad_heads(const HeadPadding& padding, std::span<const std::byte> units,
                                 size_t unit_bytes);

// The way back, for single elements. REQUIRES: whole padded heads.
std::vector<float> unpad_heads(const HeadPadding& padding, const std::vector<float>& values);

}  // namespace sluice
