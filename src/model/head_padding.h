// Padding of heads whose width is no multiple of 16, and the order of heads that rotate in part.
//
// Kernels and KV blocks take heads of whole vectors of 16 channels. A narrower head is widened with
// channels of zero: channel c of its first half stays at c, channel c of its second half moves to
// padded / 2 + c, because rope pairs channel c with channel c + width / 2. The weights make the
// added channels of q, k and v zero, so they add nothing to a score or a norm; the output
// projection has columns of zeros for them.
//
// Rope pairs the channels of a head's halves, also where only the first `rotary_dim` channels of a
// checkpoint's head rotate. Their halves go to the beginnings of the head's halves, and the others
// fill what is left, in order: scores do not depend on the order of channels, and one kernel of
// rope serves both kinds. Used by model/weights, and by traces to undo it. Thread rule: pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

// The widths of a head, in channels, and which of them rotate.
struct HeadPadding {
  int32_t head_dim = 0;         // even
  int32_t padded_head_dim = 0;  // even, at least head_dim

  int32_t rotary_dim = 0;  // even; of a head that rotates in part, else 0

  bool present() const { return head_dim != padded_head_dim || rotary_dim != 0; }
  // Number of units (rows or columns of a weight) after padding. REQUIRES: num_units is a multiple
  // of head_dim.
  int64_t padded_units(int64_t num_units) const { return num_units / head_dim * padded_head_dim; }
};

// Pads and orders whole heads. A unit is one channel: a row of a weight, or one element. Returns
// the units in their places, with zeros after each half head. Cost: one copy. Shapes: units is
// [heads * head_dim] units of unit_bytes; the result [heads * padded_head_dim].
std::vector<std::byte> pad_heads(const HeadPadding& padding, std::span<const std::byte> units,
                                 size_t unit_bytes);

// Undoes that for elements: [heads * padded_head_dim] to [heads * head_dim]. REQUIRES:
// whole padded heads.
std::vector<float> unpad_heads(const HeadPadding& padding, const std::vector<float>& values);

}  // namespace sluice
