// TokenMasks: the tokens that rows of a pass may choose, as bits in pinned memory.
//
// Used by Sampler. A pass without masks does not touch the memory, whose address never changes, so
// a graph of a decode step reads the masks of the step that it replays, over the link. Outside of a
// graph they are copied first, since the op `sample` reads them several times. Thread rule: the
// engine's thread; masks may be added only after the work that reads those of the last pass is
// done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.h"
#include "device/device.h"

namespace sluice {

class TokenMasks {
 public:
  // Takes pinned and device memory for a mask of each of `max_rows` rows.
  TokenMasks(int64_t max_rows, int64_t vocab_size, Device& device);

  // Bytes that the constructor takes of each kind of memory.
  static size_t memory_bytes(int64_t max_rows, int64_t vocab_size);

  // Drops the masks of the previous pass.
  void begin_pass() { num_masks_ = 0; }
  // Adds a mask of these tokens, ids of the vocabulary, and returns what SampleRow::mask calls it.
  int32_t add(const std::vector<int32_t>& ids);
  // Adds a mask that `set` writes before the op is enqueued.
  int32_t add_later() { return num_masks_++; }
  // Writes a mask as words; empty: all tokens. REQUIRES: as many as a mask has, or none.
  void set(int32_t mask, std::span<const int32_t> words);
  // Whether the pass has any mask.
  bool any() const { return num_masks_ > 0; }

  // SampleArgs::masks, the same in every pass.
  const TensorView& view() const { return masks_; }
  // SampleArgs::masks of this pass, copied to the device. For work that is not a part of a graph.
  TensorView copied(Stream& stream) const;

 private:
  static TensorView cut(Arena& arena, int64_t max_rows, int64_t vocab_size);

  Buffer host_memory_;
  Buffer device_memory_;
  TensorView masks_;  // i32 [max_rows, words], pinned
  int32_t num_masks_ = 0;
};

}  // namespace sluice
