// Page lists in prefill attention: which KV tiles a tile of rows visits, and which of their tokens
// each row may see.
//
// Used by both prefill kernels. The rows of a CTA share few lists (query pages have 16 tokens and
// more), so a warp merges the lists during the walk: lane l walks list l, and the next tile is the
// smallest that any lane has. A page id is read once, nothing is stored, and lists may have any
// length. Thread rule: device code, whole warps.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/attention/prefill/params.h"

namespace sluice::cuda {

// Index of a packed row's list among those of its sequence; rows after the last one have the list
// of the last.
__device__ inline int32_t list_of_row(const PrefillParams& p, const PrefillLists& lists,
                                      const PrefillTile& tile, int32_t row) {
  if (lists.q_page_tokens == 0) return 0;
  const int32_t position = tile.first_pos + min(row, tile.num_rows - 1) / p.group;
  return position / lists.q_page_tokens - tile.first_pos / lists.q_page_tokens;
}

// A KV tile that some row of the CTA has listed.
struct ListedTile {
  int32_t begin = kNoToken;  // position of its first token; kNoToken: there is none
  uint32_t mask = 0;         // bit i: this lane's list has tokens [16 i, 16 i + 16) of it
  bool is_partial = false;   // some list has not all of it

  __device__ bool present() const { return begin != kNoToken; }
};

// The tiles that the lists of a CTA's rows name, in ascending order. All lanes of a warp have one.
template <int kTileTokens>
class PageWalk {
 public:
  // REQUIRES: the tile has a row; its `num_rows` rows have at most 32 lists.
  __device__ PageWalk(const PrefillParams& p, const PrefillLists& lists, const PrefillTile& tile,
                      int32_t num_rows, int32_t lane)
      : page_tokens_(lists.page_tokens), first_list_(list_of_row(p, lists, tile, tile.first_row)) {
    const int32_t last_row = tile.first_row + num_rows - 1;
    const int32_t list = first_list_ + lane;
    has_list_ = list <= list_of_row(p, lists, tile, last_row);
    if (has_list_) {
      limit_ = tile.limit(last_row, p.group);
      if (lists.q_page_tokens > 0) {
        const int64_t q_page = tile.first_pos / lists.q_page_tokens + list;
        limit_ = static_cast<int32_t>(min(int64_t{limit_}, (q_page + 1) * lists.q_page_tokens));
      }
      open(lists, tile, list);
    }
    first_ = __reduce_min_sync(0xffffffffu, token_);
  }

  // The lane that walks the list of a packed row.
  __device__ int32_t lane_of_row(const PrefillParams& p, const PrefillLists& lists,
                                 const PrefillTile& tile, int32_t row) const {
    return list_of_row(p, lists, tile, row) - first_list_;
  }

  // Whether `next` has returned all tiles.
  __device__ bool is_done() const { return first_ == kNoToken; }

  // The next tile in ascending order; not present at the end. Each lane's `mask` is of its own
  // list.
  __device__ ListedTile next() {
    if (is_done()) return {};
    ListedTile tile{.begin = first_ - first_ % kTileTokens};
    const int32_t end = tile.begin + kTileTokens;
    while (token_ < end) {
      const int32_t stop = min(page_end_, end);
      tile.mask |= (1u << (stop - tile.begin) / 16) - (1u << (token_ - tile.begin) / 16);
      token_ = stop;
      if (token_ == page_end_) begin_page();
      if (token_ >= limit_) token_ = kNoToken;
    }
    constexpr uint32_t kWhole = (1u << kTileTokens / 16) - 1;
    tile.is_partial = __any_sync(0xffffffffu, has_list_ && tile.mask != kWhole);
    first_ = __reduce_min_sync(0xffffffffu, token_);
    return tile;
  }

 private:
  // Goes to the first page that is not before the run.
  __device__ void open(const PrefillLists& lists, const PrefillTile& tile, int32_t list) {
    const int32_t head = lists.num_list_heads == 1 ? 0 : tile.kv_head;
    const int64_t index =
        (static_cast<int64_t>(tile.seq) * lists.num_list_heads + head) * lists.num_q_pages + list;
    ids_ = lists.page_ids + index * lists.max_pages;
    num_left_ = lists.page_count[index];
    skip_pages_before(tile.kv_begin / page_tokens_);
    read_ahead();
    begin_page();
    if (token_ >= limit_) token_ = kNoToken;
  }

  // Binary search: a call for a late run does not read the whole list.
  __device__ void skip_pages_before(int32_t page) {
    int32_t low = 0;
    int32_t high = page > 0 ? num_left_ : 0;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (ids_[middle] < page) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    ids_ += low;
    num_left_ -= low;
  }

  // Reads ids one page ahead, so that the latency of the load is hidden behind a page.
  __device__ void read_ahead() {
    next_page_ = num_left_ > 0 ? *ids_ : -1;
    ++ids_;
    --num_left_;
  }

  // Moves to the page that was read ahead, or to kNoToken after the last.
  __device__ void begin_page() {
    token_ = next_page_ < 0 ? kNoToken : next_page_ * page_tokens_;
    page_end_ = token_ + page_tokens_;
    read_ahead();
  }

  const int32_t* ids_ = nullptr;  // the entry after `next_page_`
  int32_t num_left_ = 0;          // entries from there on
  int32_t next_page_ = -1;
  int32_t page_tokens_;
  int32_t token_ = kNoToken;  // the next of this lane's list
  int32_t page_end_ = 0;      // where its page ends
  int32_t limit_ = 0;         // no row of the list sees a token from here on
  int32_t first_list_;        // of lane 0
  int32_t first_;             // the smallest `token_` of all lanes
  bool has_list_ = false;
};

// Gives scores of tokens whose page a row has not listed the value -inf. `mask`: of the two rows'
// lists, a bit for each 16 tokens.
template <int kTokens>
__device__ __forceinline__ void mask_pages(const uint32_t (&mask)[2], float (&s)[kTokens / 2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      if ((mask[r] >> j / 2 & 1) != 0) continue;
      s[4 * j + 2 * r] = -INFINITY;
      s[4 * j + 2 * r + 1] = -INFINITY;
    }
  }
}

}  // namespace sluice::cuda
