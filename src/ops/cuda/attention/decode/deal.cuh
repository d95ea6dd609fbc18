// Which windows of a run a page list shows, and which block of decode/listed.cu computes them.
//
// Used by attention/decode/listed.cu. Each block searches the whole list and takes its share of the
// windows found, so that the blocks of a list need not communicate. Thread rule: device code; all
// threads of a block call deal and locate.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/decode/block.cuh"

namespace sluice::cuda::decode {

inline constexpr int kWarps = 4;       // of a block
inline constexpr int kMostDealt = 64;  // windows that a block is dealt
inline constexpr int kLoadsAtOnce = 8;

// Where listed pages lie: in the blocks of the sequence, gathered side by side, or gathered into
// places of their own.
enum class Pages { kInBlocks, kSideBySide, kInPlaces };

// A window that the list shows: it contains at least one listed page.
struct ListedWindow {
  // Of its first token; where pages are gathered: of the first listed page; with places: of block
  // 0.
  const uint16_t* keys;
  int32_t index;       // of the run
  int32_t entry;       // of the list, of its first listed page
  int32_t num_tokens;  // that the row sees
  uint32_t tiles;      // that are listed
};

// The share of a block, in shared memory.
struct Dealt {
  ListedWindow windows[kMostDealt];
  int32_t num_found[kWarps];  // windows that begin in a warp's stretch of the list
};

// A list, and the tokens of the run that the row sees.
struct List {
  const int32_t* ids;
  int32_t count;
  int32_t page_tokens;
  int32_t begin;
  int32_t end;

  // The window of the run in which a page lies, -1 where none.
  __device__ int32_t window_of(int32_t page) const {
    const int32_t token = page * page_tokens;
    return page >= 0 && token >= begin && token < end ? (token - begin) / kMaxWindowTokens : -1;
  }
  // A bit for each tile of the page, in its window.
  __device__ uint32_t tiles_of(int32_t page) const {
    const int32_t first = (page * page_tokens - begin) % kMaxWindowTokens / kTileTokens;
    return ((1u << page_tokens / kTileTokens) - 1) << first;
  }
};

// The list of a KV head. Its length is read at once; the ids are read by for_each_entry.
__device__ inline List make_list(const DecodeParams& p, const DecodeRow& row, int32_t seq,
                                 int32_t kv_head) {
  const int32_t list_head = p.num_list_heads == 1 ? 0 : kv_head;
  const int64_t index = static_cast<int64_t>(seq) * p.num_list_heads + list_head;
  List list;
  list.ids = p.page_ids + index * p.max_pages;
  list.count = load_now(p.page_count + index);
  list.page_tokens = p.page_tokens;
  list.begin = row.kv_begin;
  list.end = row.kv_end;
  return list;
}

// Visits entries [begin, end), a warp's stretch, 32 at a time: fn(entry, page, window, lanes whose
// page is the first of its window). All lanes call; `entry`, `page` and `window` are the lane's
// own.
template <typename Fn>
__device__ __forceinline__ void for_each_entry(const List& list, int32_t begin, int32_t end,
                                               int32_t lane, Fn fn) {
  // The window of the entry before the current one, over lanes and steps: a page is the first of
  // its window when the entry before it has another.
  int32_t before = begin > 0 && begin < end ? list.window_of(list.ids[begin - 1]) : -1;
  for (int32_t first = begin; first < end; first += kLoadsAtOnce * kWarpThreads) {
    int32_t pages[kLoadsAtOnce];
#pragma unroll
    for (int i = 0; i < kLoadsAtOnce; ++i) {
      const int32_t entry = first + i * kWarpThreads + lane;
      pages[i] = entry < end ? list.ids[entry] : -1;
    }
#pragma unroll
    for (int i = 0; i < kLoadsAtOnce; ++i) {
      if (first + i * kWarpThreads >= end) break;
      const int32_t window = list.window_of(pages[i]);
      int32_t previous = __shfl_up_sync(kFullWarp, window, 1);
      if (lane == 0) previous = before;
      before = __shfl_sync(kFullWarp, window, kWarpThreads - 1);
      fn(first + i * kWarpThreads + lane, pages[i], window,
         __ballot_sync(kFullWarp, window >= 0 && window != previous));
    }
  }
}

// The share of a block: windows [first, first + count) of those that the list shows.
struct Share {
  int32_t first;
  int32_t count;
};

// Computes a block's share and fills in its windows. Two passes over the list: the first counts the
// windows that begin in each warp's stretch, the second numbers them in order of position and
// collects their tiles. Block 0 writes the total to p.num_found.
__device__ __forceinline__ Share deal(const DecodeParams& p, const List& list, const Place& place,
                                      Dealt& dealt) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarpThreads;
  const int32_t warp = thread / kWarpThreads;
  if (thread < kMostDealt) dealt.windows[thread].tiles = 0;
  // Stretches are multiples of 32 entries: only the last step over the list is incomplete.
  const int32_t stretch =
      (list.count + kWarps * kWarpThreads - 1) / (kWarps * kWarpThreads) * kWarpThreads;
  const int32_t begin = min(warp * stretch, list.count);
  const int32_t end = min(begin + stretch, list.count);
  int32_t num_found = 0;
  for_each_entry(list, begin, end, lane,
                 [&](int32_t, int32_t, int32_t, uint32_t firsts) { num_found += __popc(firsts); });
  if (lane == 0) dealt.num_found[warp] = num_found;
  __syncthreads();
  int32_t before = 0;
  int32_t total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += dealt.num_found[w];
    total += dealt.num_found[w];
  }
  if (blockIdx.x == 0 && thread == 0) {
    p.num_found[blockIdx.z * p.num_kv_heads + place.kv_head] = total;
  }
  const auto num_blocks = static_cast<int32_t>(gridDim.x);
  const int32_t each = (total + num_blocks - 1) / num_blocks;
  Share share;
  share.first = min(static_cast<int32_t>(blockIdx.x) * each, total);
  share.count = min(each, total - share.first);
  // A window that began in the stretch before may continue in this one, hence before - 1.
  if (before - 1 < share.first + share.count && before + num_found > share.first) {
    for_each_entry(
        list, begin, end, lane, [&](int32_t entry, int32_t page, int32_t window, uint32_t firsts) {
          const uint32_t up_to_lane = kFullWarp >> (kWarpThreads - 1 - lane);
          const int32_t place_in_share = before + __popc(firsts & up_to_lane) - 1 - share.first;
          before += __popc(firsts);
          if (window < 0 || place_in_share < 0 || place_in_share >= share.count) return;
          ListedWindow& listed = dealt.windows[place_in_share];
          atomicOr(&listed.tiles, list.tiles_of(page));
          if ((firsts >> lane & 1u) != 0) {
            listed.index = window;
            listed.entry = entry;
          }
        });
  }
  __syncthreads();
  return share;
}

// Finds where the dealt windows lie in memory; one thread per window.
template <typename C, Pages kPages>
__device__ __forceinline__ void locate(const DecodeParams& p, const DecodeRow& row,
                                       const Place& place, const Share& share, Dealt& dealt) {
  if (static_cast<int32_t>(threadIdx.x) < share.count) {
    ListedWindow& listed = dealt.windows[threadIdx.x];
    constexpr bool kGathered = kPages != Pages::kInBlocks;
    int32_t block = 0;
    if constexpr (kPages == Pages::kSideBySide) block = listed.entry;
    if constexpr (!kGathered) block = block_of_window<false>(p, place.seq, listed.index);
    const DecodeWindow window =
        make_window<false>(p, row, place.seq, place.kv_head, listed.index, block, 0);
    listed.keys = kGathered ? block_keys(p, block, place.kv_head) : window.keys;
    listed.num_tokens = min(row.kv_end - window.begin, kMaxWindowTokens);
    listed.tiles &= window.tiles;  // without tiles after the row's last token
  }
  __syncthreads();
}

}  // namespace sluice::cuda::decode
