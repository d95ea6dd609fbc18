// Windows of decode attention: which tokens of a window a row sees, and where they lie.
//
// Used by all kernels that compute windows. A tile is kAttentionTile tokens at a multiple of them;
// pages and windows are whole tiles. Thread rule: device code, whole warps.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/decode/choice.h"
#include "ops/cuda/attention/decode/params.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/kv_codec.cuh"

namespace sluice::cuda {

inline constexpr int32_t kTileTokens = 16;
inline constexpr int32_t kStripTokens = 32;  // of a window, computed from the empty state

// The row of a sequence and what it sees of the run.
struct DecodeRow {
  int64_t row;       // -1: the sequence has none
  int32_t position;  // of the row
  int32_t kv_begin;  // the run's
  int32_t kv_end;    // one past the last token that the row sees
  int32_t num_windows;
};

// Reads the tables of a sequence; all loads are in flight together.
__device__ inline DecodeRow decode_row(const DecodeParams& p, int32_t seq) {
  const int32_t begin = load_now(p.row_begin + seq);
  const int32_t end = load_now(p.row_begin + seq + 1);
  const int32_t first_pos = load_now(p.first_pos + seq);
  const int32_t kv_begin = load_now(p.kv_begin + seq);
  const int32_t kv_end = min(load_now(p.kv_end + seq), first_pos + 1);
  DecodeRow row;
  row.row = begin < end ? begin : -1;
  row.position = first_pos;
  row.kv_begin = kv_begin;
  row.kv_end = kv_end;
  const int32_t num_tokens = row.row < 0 ? 0 : max(kv_end - kv_begin, 0);
  // A window is a power of two.
  row.num_windows = (num_tokens + p.window_tokens - 1) >> p.window_shift;
  return row;
}

// The queries of the zone in which a window lies. A window divides a block, and a block a chunk, so
// all of its tokens are in one zone. Reads the chunk from the tables: a graph may be replayed when
// the row is in another one.
__device__ __forceinline__ const uint16_t* queries_of_window(const DecodeParams& p,
                                                             const DecodeRow& row,
                                                             int32_t window_begin) {
  if (p.chunk_tokens == 0) return p.q;
  const int32_t own_begin = row.position - row.position % p.chunk_tokens;
  if (window_begin >= own_begin) return p.q;
  return window_begin >= own_begin - p.chunk_tokens ? p.q_before : p.q_far;
}

// Index of a window's result, or of its first half's, in partial_max_sum; acc is at head_dim times
// the index.
__device__ inline int64_t partial_index(const DecodeParams& p, int32_t round_seq, int32_t head,
                                        int32_t round_window) {
  const int64_t first = (static_cast<int64_t>(round_seq) * p.num_q_heads + head) * p.num_windows;
  return (first + round_window) * p.records;
}

// exp(value - reference); 0 for -inf and any finite reference.
__device__ __forceinline__ float exp_of_difference(float value, float reference) {
  return exp2_approx(__fmul_rn(__fsub_rn(value, reference), kLog2E));
}

// The reference of exponentials: the maximum, or 0 while it is -inf, since -inf - -inf is NaN.
__device__ __forceinline__ float reference_of(float max) { return max == -INFINITY ? 0.0f : max; }

// The index of the first of ascending ids[low, high) that is at least `page`; all lanes get it. A
// search in 32 parts instead of 2: each step costs one load per lane.
// Cost: one load for lists of up to 32 entries, two up to 1024, three up to 32768.
__device__ inline int32_t lower_bound(const int32_t* ids, int32_t low, int32_t high, int32_t page,
                                      int32_t lane) {
  while (low < high) {
    const int32_t step = (high - low + kWarpThreads - 1) / kWarpThreads;
    // Lane l compares the last entry of the l-th stretch of `step` entries.
    const int64_t last = low + static_cast<int64_t>(lane + 1) * step - 1;
    const bool is_before = last < high && ids[last] < page;
    low += __popc(__ballot_sync(kFullWarp, is_before)) * step;
    if (step == 1) break;
    high = min(high, low + step - 1);  // the last of the stretch is known not to be before
  }
  return low;
}

// The (max, sum) of a window of which the row sees nothing.
__device__ inline float2 nothing_visible() { return {-INFINITY, 0.0f}; }
__device__ inline bool shows_nothing(float2 max_sum) {
  return max_sum.x == -INFINITY && max_sum.y == 0.0f;
}

// The weights with which the acc of two halves are added; a weight below 0 leaves that half out.
struct HalfWeights {
  float first;
  float second;
};

// The sum of two halves of a window: (max, sum) and the weights, then acc by these weights.
__device__ inline float2 sum_of_halves(float2 first, float2 second, HalfWeights& weights) {
  weights = {1.0f, -1.0f};
  if (shows_nothing(second)) return first;
  const float max = fmaxf(first.x, second.x);
  const float reference = reference_of(max);
  weights = {exp_of_difference(first.x, reference), exp_of_difference(second.x, reference)};
  const float sum = __fmaf_rn(second.y, weights.second, __fmul_rn(first.y, weights.first));
  if (shows_nothing(first)) weights.first = -1.0f;
  return {max, sum};
}
__device__ inline float sum_of_halves(float first, float second, const HalfWeights& weights) {
  if (weights.second < 0.0f) return first;
  const float added = weights.first < 0.0f ? 0.0f : __fmul_rn(first, weights.first);
  return __fmaf_rn(second, weights.second, added);
}

struct DecodeWindow {
  int32_t begin;   // position of the first token
  int32_t kv_end;  // one past the last token that the row sees, of the run
  uint32_t tiles;  // bit t: some token of tile t is seen
  bool resumes;    // the previous part of a gathered list began this window
  bool is_open;    // the next part will go on with it
  // Pages in place:
  const uint16_t* keys;  // of token `begin`
  int32_t in_block;      // the tokens of its block before it
  // Gathered pages: bit i of `pages` is page first_page + i; those set lie in blocks `block`,
  // block + 1, and so on.
  int32_t first_page;
  uint32_t pages;
  int32_t block;
  const int32_t* places;  // not null: they lie in blocks places[block], places[block + 1], ...
};

// The places of a list's pages; null where they lie side by side.
__device__ __forceinline__ const int32_t* places_of(const DecodeParams& p, int32_t seq,
                                                    int32_t kv_head) {
  if (p.page_places == nullptr) return nullptr;
  return p.page_places + (static_cast<int64_t>(seq) * p.num_kv_heads + kv_head) * p.max_places;
}

// Elements from the keys of a block to its values.
template <KvCodes kCodes = KvCodes::kNone>
__device__ __forceinline__ int64_t offset_of_values(const DecodeParams& p, int32_t head_dim) {
  if constexpr (kHasCodedKeys<kCodes>) return kv_elements<true>(p.block_tokens, head_dim);
  return static_cast<int64_t>(p.block_tokens) * head_dim;
}

// The keys of a KV head in a block. Pointers count elements of 16 bits for codes, too: 16 tokens
// are a whole number of them.
template <KvCodes kCodes = KvCodes::kNone>
__device__ inline const uint16_t* block_keys(const DecodeParams& p, int32_t block,
                                             int32_t kv_head) {
  const auto* base = reinterpret_cast<const uint16_t*>(p.kv_base + block * p.kv_stride_bytes);
  if constexpr (kCodes == KvCodes::kNone) return base + kv_head * 2 * p.block_tokens * p.head_dim;
  return base + kv_head * (offset_of_values<kCodes>(p, p.head_dim) +
                           kv_elements<true>(p.block_tokens, p.head_dim));
}

// Sets `pages` and removes tiles of other pages from `tiles`; for a gathered list, `resumes` and
// `is_open` say whether its cuts lie inside the window.
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
  window.places = places_of(p, seq, kv_head);
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

// The functions below are compiled twice, with lists and without: at short contexts the time of a
// kernel is that of the instructions before its first load. A division is some 30 dependent
// instructions, so the common one by 1 is left out.

// The entry of the block table in which window `index` of a run begins.
__device__ inline int32_t entry_of_window(const DecodeParams& p, int32_t index) {
  return p.windows_per_block == 1 ? index : index / p.windows_per_block;
}

// The block in which window `index` of a run begins, unless pages are gathered. It depends on no
// loaded value, so that its load and those of decode_row are in flight together.
template <bool kListed>
__device__ inline int32_t block_of_window(const DecodeParams& p, int32_t seq, int32_t index) {
  if (kListed && p.gathered) return -1;
  const int32_t entry = min(entry_of_window(p, index), p.max_blocks - 1);  // or after every run
  return load_now(p.block_table + static_cast<int64_t>(seq) * p.max_blocks + entry);
}

// Window `index` of the run of sequence `seq`, which begins in `block`.
// REQUIRES: index < row.num_windows; all lanes call.
template <bool kListed, KvCodes kCodes = KvCodes::kNone>
__device__ inline DecodeWindow make_window(const DecodeParams& p, const DecodeRow& row, int32_t seq,
                                           int32_t kv_head, int32_t index, int32_t block,
                                           int32_t lane) {
  DecodeWindow window;
  window.begin = row.kv_begin + index * p.window_tokens;
  window.kv_end = row.kv_end;
  const int32_t num_tokens = min(p.window_tokens, row.kv_end - window.begin);
  window.tiles = (1u << (num_tokens + kTileTokens - 1) / kTileTokens) - 1;
  window.resumes = window.is_open = false;
  window.keys = nullptr;
  if (!kListed || !p.gathered) {
    const int32_t window_of_block = index - entry_of_window(p, index) * p.windows_per_block;
    window.in_block = window_of_block * p.window_tokens;
    window.keys = block_keys<kCodes>(p, block, kv_head) +
                  kv_elements<kHasCodedKeys<kCodes>>(window.in_block, p.head_dim);
  }
  if (kListed) apply_list(p, seq, kv_head, lane, window);
  return window;
}

// Keys of a tile's first token; its values lie offset_of_values elements further, less
// shift_of_values.
template <bool kListed, KvCodes kCodes = KvCodes::kNone>
__device__ inline const uint16_t* tile_keys(const DecodeParams& p, const DecodeWindow& window,
                                            int32_t kv_head, int32_t head_dim, int32_t tile) {
  if (!kListed || !p.gathered) {
    return window.keys + kv_elements<kHasCodedKeys<kCodes>>(tile * kTileTokens, head_dim);
  }
  const int32_t token = window.begin + tile * kTileTokens;
  const int32_t page = token / p.page_tokens;
  const uint32_t pages_before = window.pages & ((1u << (page - window.first_page)) - 1);
  int32_t block = window.block + __popc(pages_before);
  if (window.places != nullptr) block = window.places[block];
  return block_keys<kCodes>(p, block, kv_head) +
         kv_elements<kHasCodedKeys<kCodes>>(token - page * p.page_tokens, head_dim);
}

// Of values in codes beside keys in bf16, whose rows before the tile are shorter. Units: elements.
template <bool kListed, KvCodes kCodes>
__device__ inline int32_t shift_of_values(const DecodeParams& p, const DecodeWindow& window,
                                          int32_t head_dim, int32_t tile) {
  if constexpr (kCodes != KvCodes::kValues) return 0;
  const int32_t token = kListed && p.gathered ? (window.begin + tile * kTileTokens) % p.page_tokens
                                              : window.in_block + tile * kTileTokens;
  return kv_elements<false>(token, head_dim) - kv_elements<true>(token, head_dim);
}

}  // namespace sluice::cuda
