// Windows of decode attention: which tokens of a window a row sees, and where they lie.
//
// Used by both kernels that work windows out. A tile is kAttentionTile tokens at a multiple of
// them; pages and windows are whole tiles. Thread rule: device code, whole warps.
#pragma once

#include <cstdint>

#include "ops/cuda/attention_decode_params.h"
#include "ops/cuda/common.cuh"

namespace sluice::cuda {

inline constexpr int32_t kTileTokens = 16;
inline constexpr int32_t kMaxWindowTokens = 256;  // so that a bit mask of tiles has 16 bits
inline constexpr float kLog2E = 1.4426950408889634f;

// The row of a sequence and what it sees of the run.
struct DecodeRow {
  int64_t row;       // -1: the sequence has none
  int32_t kv_begin;  // the run's
  int32_t kv_end;    // one past the last token that the row sees
  int32_t num_windows;
};

__device__ inline DecodeRow decode_row(const DecodeParams& p, int32_t seq) {
  DecodeRow row;
  row.row = p.row_begin[seq];
  row.kv_begin = p.kv_begin[seq];
  row.kv_end = min(p.kv_end[seq], p.first_pos[seq] + 1);
  if (p.row_begin[seq + 1] <= row.row) row.row = -1;
  const int32_t num_tokens = row.row < 0 ? 0 : max(row.kv_end - row.kv_begin, 0);
  row.num_windows = (num_tokens + p.window_tokens - 1) / p.window_tokens;
  return row;
}

// Index of what a window came to; acc lies at head_dim times it.
__device__ inline int64_t partial_index(const DecodeParams& p, int32_t round_seq, int32_t head,
                                        int32_t round_window) {
  return (static_cast<int64_t>(round_seq) * p.num_q_heads + head) * p.num_windows + round_window;
}

// exp(value - reference), and 0 for -inf whatever finite reference.
__device__ __forceinline__ float exp_of_difference(float value, float reference) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;"
      : "=f"(result)
      : "f"(__fmul_rn(__fsub_rn(value, reference), kLog2E)));
  return result;
}

// What differences are taken to: the maximum, or 0 while it is -inf, since -inf - -inf is NaN.
__device__ __forceinline__ float reference_of(float max) { return max == -INFINITY ? 0.0f : max; }

// The first entry of ascending ids[low, high) that is `page` or behind it; all lanes get it.
// Cost: one load for lists of up to 32 entries, two up to 1024, three up to 32768.
__device__ inline int32_t lower_bound(const int32_t* ids, int32_t low, int32_t high, int32_t page,
                                      int32_t lane) {
  while (low < high) {
    const int32_t step = (high - low + kWarpThreads - 1) / kWarpThreads;
    // Lane l asks about the last entry of the l-th stretch of `step` entries.
    const int64_t last = low + static_cast<int64_t>(lane + 1) * step - 1;
    const bool is_before = last < high && ids[last] < page;
    low += __popc(__ballot_sync(kFullWarp, is_before)) * step;
    if (step == 1) break;
    high = min(high, low + step - 1);  // the last of the stretch is known not to be before
  }
  return low;
}

// The (max, sum) of a window that came to nothing.
__device__ inline float2 nothing_visible() { return {-INFINITY, 0.0f}; }

struct DecodeWindow {
  int32_t begin;   // position of the first token
  int32_t kv_end;  // one past the last token that the row sees, of the run
  uint32_t tiles;  // bit t: some token of tile t is seen
  bool resumes;    // the previous part of a gathered list began this window
  bool is_open;    // the next part will go on with it
  // Pages in place:
  const uint16_t* keys;  // of token `begin`
  // Gathered pages: bit i of `pages` is page first_page + i; those set lie in blocks `block`,
  // block + 1, and so on.
  int32_t first_page;
  uint32_t pages;
  int32_t block;
};

__device__ inline const uint16_t* block_keys(const DecodeParams& p, int32_t block,
                                             int32_t kv_head) {
  return reinterpret_cast<const uint16_t*>(p.kv_base + block * p.kv_stride_bytes) +
         static_cast<int64_t>(kv_head) * 2 * p.block_tokens * p.head_dim;
}

// Fills in `pages` and takes tiles of other pages out of `tiles`.
__device__ inline void apply_list(const DecodeParams& p, int32_t seq, int32_t kv_head, int32_t lane,
                                  DecodeWindow& window) {
  const int32_t list_head = p.num_list_heads == 1 ? 0 : kv_head;
  const int64_t list = static_cast<int64_t>(seq) * p.num_list_heads + list_head;
  const int32_t* ids = p.page_ids + list * p.max_pages;
  const int32_t count = p.page_count[list];
  const int32_t low = p.gathered ? p.first_entry : 0;
  const int32_t high = p.gathered ? min(count, p.first_entry + p.num_entries) : count;
  window.first_page = window.begin / p.page_tokens;
  const int32_t entry = lower_bound(ids, low, high, window.first_page, lane);
  window.block = entry - p.first_entry;
  // Pages are whole tiles, so a window overlaps at most 17 of them.
  const int32_t end = min(window.begin + p.window_tokens, window.kv_end);
  const int32_t end_page = (end + p.page_tokens - 1) / p.page_tokens;
  const int32_t page = entry + lane < high ? ids[entry + lane] : end_page;
  const uint32_t bit = page < end_page ? 1u << (page - window.first_page) : 0u;
  window.pages = __reduce_or_sync(kFullWarp, bit);
  if (p.gathered && window.pages != 0) {
    window.resumes = low > 0 && ids[low - 1] >= window.first_page;
    window.is_open = high < count && ids[high] < end_page;
  }
  const int32_t tile_page = (window.begin + lane * kTileTokens) / p.page_tokens;
  const int32_t place = min(tile_page - window.first_page, kWarpThreads - 1);
  const bool is_listed = (window.pages >> place & 1u) != 0;
  window.tiles &= __ballot_sync(kFullWarp, is_listed);
}

// The block in which window `index` of a run begins, unless pages are gathered. Needs nothing that
// must be loaded before: its load and those of decode_row are under way together.
__device__ inline int32_t block_of_window(const DecodeParams& p, int32_t seq, int32_t index) {
  const int32_t entry = index * p.window_tokens / p.block_tokens;
  if (p.gathered || entry >= p.max_blocks) return -1;  // behind every run
  return p.block_table[static_cast<int64_t>(seq) * p.max_blocks + entry];
}

// Window `index` of the run of sequence `seq`, which begins in `block`.
// REQUIRES: index < row.num_windows; all lanes call.
__device__ inline DecodeWindow make_window(const DecodeParams& p, const DecodeRow& row, int32_t seq,
                                           int32_t kv_head, int32_t index, int32_t block,
                                           int32_t lane) {
  DecodeWindow window;
  const int32_t offset = index * p.window_tokens;
  window.begin = row.kv_begin + offset;
  window.kv_end = row.kv_end;
  const int32_t num_tokens = min(p.window_tokens, row.kv_end - window.begin);
  window.tiles = (1u << (num_tokens + kTileTokens - 1) / kTileTokens) - 1;
  window.resumes = window.is_open = false;
  window.keys = nullptr;
  if (!p.gathered) {
    window.keys =
        block_keys(p, block, kv_head) + static_cast<int64_t>(offset % p.block_tokens) * p.head_dim;
  }
  if (p.page_ids != nullptr) apply_list(p, seq, kv_head, lane, window);
  return window;
}

// Keys of a tile's first token; its values lie p.block_tokens * p.head_dim elements behind.
__device__ inline const uint16_t* tile_keys(const DecodeParams& p, const DecodeWindow& window,
                                            int32_t kv_head, int32_t tile) {
  if (!p.gathered) return window.keys + static_cast<int64_t>(tile) * kTileTokens * p.head_dim;
  const int32_t token = window.begin + tile * kTileTokens;
  const int32_t page = token / p.page_tokens;
  const uint32_t pages_before = window.pages & ((1u << (page - window.first_page)) - 1);
  return block_keys(p, window.block + __popc(pages_before), kv_head) +
         static_cast<int64_t>(token - page * p.page_tokens) * p.head_dim;
}

}  // namespace sluice::cuda
