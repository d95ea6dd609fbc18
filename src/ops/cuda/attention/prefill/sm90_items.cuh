// The work items of the Hopper prefill kernels: whole tiles of packed rows, or parts of them.
//
// Used by attention/prefill/sm90.cuh, sm90_lists.cuh and sm90_tiles.cuh. Thread rule: pure.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/attention/prefill/params.h"
#include "ops/cuda/attention/prefill/sm90.h"

namespace sluice::cuda::sm90 {

// Tiles of the same length end together, and the last wave of CTAs leaves multiprocessors idle. So
// some tiles are computed in two parts: kFirst at the beginning of the launch and kSecond at its
// end. A second part waits for its first, whose CTA has begun before it. Second parts become
// shorter from long to nearly nothing, first parts longer, so that multiprocessors finish one after
// the other and the last parts fill the gaps. A second part continues with the registers of its
// first, which is the same arithmetic.
enum class Part { kWhole, kFirst, kSecond };

// A tile of rows and the part of its KV tokens, [kv_begin, kv_end), that this item attends.
struct Item : PrefillTile {
  Part part = Part::kWhole;
  int32_t slot = 0;         // of a part: index of the split tile in handed_over
  int32_t first_block = 0;  // entry of the block table: the block at kv_begin
  // With zones over a mask: where the visited tiles of the chunk before the rows' own, and those of
  // their own, begin in the run in which visited tiles lie side by side.
  int32_t before_at = 0;
  int32_t own_at = 0;
};

// ZoneBorders of a walk over a mask, in positions of the run in which visited tiles lie side by
// side. All rows of a tile lie in one query tile, hence in one chunk.
class SetZoneBorders {
 public:
  __device__ SetZoneBorders(const PrefillParams& p, const Item& item, int32_t first_row)
      : chunk_tokens_(p.chunk_tokens), before_at_(item.before_at), own_at_(item.own_at) {
    const int32_t position = item.position(first_row, p.group);
    own_begin_ = position - position % chunk_tokens_;
    pass(item.kv_begin);
  }

  // The first token of a chunk in whose zone the tile at `at` lies: far chunks have one zone.
  __device__ int32_t chunk_begin(int32_t at) const {
    if (at >= own_at_) return own_begin_;
    return own_begin_ - (at >= before_at_ ? chunk_tokens_ : 2 * chunk_tokens_);
  }
  __device__ bool reaches(int32_t at) const { return at >= next_; }
  __device__ void pass(int32_t at) {
    next_ = at >= own_at_ ? kNoToken : at >= before_at_ ? own_at_ : before_at_;
  }

 private:
  int32_t chunk_tokens_;
  int32_t before_at_;
  int32_t own_at_;
  int32_t own_begin_;
  int32_t next_;
};

// Items [begin, end) of CTA `cta`, in launch order. Where there are parts, `cta` counts CTAs in the
// order in which they begin (take_ticket of sm90.cuh), else it is the CTA's index.
struct ItemRange {
  int begin;
  int end;
  __device__ ItemRange(const PrefillParams& p, int cta)
      : begin(cta * p.tiles_per_cta),
        end(min(begin + p.tiles_per_cta, p.num_tiles + p.num_split)) {}
};

// In launch order: first parts, whole tiles, second parts. kSplits: whether there are any.
template <bool kSplits>
__device__ __forceinline__ Item item_at(const PrefillParams& p, int32_t index) {
  if constexpr (!kSplits) return {tile_at(p, index, kRowsPerTile)};
  const int32_t num_whole = p.num_tiles - p.num_split;
  const bool is_first = index < p.num_split;
  const int32_t tile_index = is_first ? num_whole + index : index - p.num_split;
  Item item{tile_at(p, tile_index, kRowsPerTile)};
  if (tile_index < num_whole) return item;
  item.part = is_first ? Part::kFirst : Part::kSecond;
  item.slot = tile_index - num_whole;
  const int32_t num_tokens = item.limit(item.first_row + kRowsPerTile - 1, p.group) - item.kv_begin;
  const int32_t num_blocks = max(num_tokens, 0) / p.block_tokens;
  // The cut lies between blocks, hence between KV tiles.
  const float share = static_cast<float>(p.num_split - item.slot) * p.split_step;
  const auto of_second = static_cast<int32_t>(static_cast<float>(num_blocks) * share);
  const int32_t between = item.kv_begin + (num_blocks - of_second) * p.block_tokens;
  if (is_first) {
    item.kv_end = min(item.kv_end, between);
  } else {
    item.kv_begin = between;
    item.first_block = num_blocks - of_second;
    item.starts_empty = true;  // its state comes from the first part
  }
  return item;
}

}  // namespace sluice::cuda::sm90
