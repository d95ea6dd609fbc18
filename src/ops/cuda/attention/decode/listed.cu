// Decode attention over page lists, first phase: warps compute the windows that a list shows.
//
// Used by attention/decode/decode.cc for long contexts, where most windows may show nothing
// (deals_listed_windows). Blocks divide the windows that a list shows among themselves
// (attention/decode/deal.cuh); a warp computes a window alone, tile by tile through a ring of
// copies that continues into its next window. Bits of strips, halves and windows are those of
// attention/decode/block.cu. Pages lie in place or have been gathered. Bound: latency, that of the
// warp with the most tiles; time depends on listed pages, not on the context
// (docs/kernels/cuda_attention.md).
#include <algorithm>

#include "device/cuda/early_launch.cuh"
#include "ops/cuda/attention/decode/block.cuh"
#include "ops/cuda/attention/decode/deal.cuh"
#include "ops/cuda/attention/decode/kernels.h"

namespace sluice::cuda {
namespace {

using namespace decode;  // strips

constexpr int kSlots = 3;  // of a warp's ring, each a tile of keys or of values
constexpr int kStripsOfHalf = kHalfTokens / kStripTokens;

// Shared memory of a warp. Scores of a half are kept, since its maximum is needed before the first
// strip is added.
template <typename C>
struct Ring {
  uint16_t queries[C::kHeads][C::kHeadDim];
  Rows<C> tiles[kSlots];
  float4 scores[kHalfTiles][kWarpThreads];  // as Scores has them
};

// Where a tile of a gathered window lies: its page, counted from the window's first listed page,
// and its offset in that page, in elements. Pages are a power of two of tiles, and all tiles of the
// window's earlier listed pages are set in `tiles`.
struct TileOfPage {
  int32_t page;
  int32_t offset;
};
template <typename C>
__device__ __forceinline__ TileOfPage tile_of_gathered(const DecodeParams& p, uint32_t tiles,
                                                       int32_t tile) {
  const int32_t tiles_per_page = p.page_tokens / kTileTokens;
  const int32_t tile_of_page = tile & (tiles_per_page - 1);
  const uint32_t tiles_before = tiles & ((1u << (tile - tile_of_page)) - 1);
  return {__popc(tiles_before) / tiles_per_page, tile_of_page * kTileTokens * C::kHeadDim};
}

// Copies the tiles of a warp's windows in the order of their use: for each half its keys, then its
// values. Slots of the ring are filled and used in turn.
template <typename C, Pages kPages>
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const DecodeParams& p, const Dealt& dealt, const Share& share,
                                   Ring<C>& ring)
      : p_(p), dealt_(dealt), ring_(ring), next_(threadIdx.x / kWarpThreads), count_(share.count) {
    if constexpr (kPages == Pages::kInPlaces) load_places();
  }

  // Starts the copy of the next tile, if there is one. Closes a group of copies in any case, so
  // that `wait` can count groups. queue_: bits 0 to 7 are keys of the first half's tiles, 8 to 15
  // their values, 16 to 31 the second half's.
  __device__ __forceinline__ void ask() {
    if (queue_ == 0 && next_ < count_) {
      const ListedWindow& window = dealt_.windows[next_];
      keys_ = window.keys;
      num_tokens_ = window.num_tokens;
      if constexpr (kPages != Pages::kInBlocks) tiles_ = window.tiles;
      const uint32_t low = window.tiles & 0xffu;
      const uint32_t high = window.tiles >> 8;
      queue_ = low | low << 8 | high << 16 | high << 24;
      next_ += kWarps;
      if constexpr (kPages == Pages::kInPlaces) {
        places_ = next_places_;
        load_places();
      }
    }
    if (queue_ != 0) {
      const int32_t place = __ffs(queue_) - 1;
      queue_ &= queue_ - 1;
      const int32_t tile = place / 16 * 8 + place % 8;
      const int32_t token = tile * kTileTokens;
      const uint16_t* source = keys_ + offset_of(tile);
      if (place / 8 % 2 != 0) source += p_.block_tokens * C::kHeadDim;
      const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
      copy_rows<C, kTileTokens>(source, num_tokens_ - token, lane, ring_.tiles[to_fill_]);
      to_fill_ = to_fill_ + 1 == kSlots ? 0 : to_fill_ + 1;
    }
    end_of_copies();
  }

  // Waits for the tile that is used next.
  __device__ __forceinline__ const Rows<C>& wait() {
    wait_for_copies_but<kSlots - 1>();
    __syncwarp();
    return ring_.tiles[to_use_];
  }

  // Gives the slot of the tile back and starts the next copy into it.
  __device__ __forceinline__ void leave() {
    __syncwarp();
    to_use_ = to_use_ + 1 == kSlots ? 0 : to_use_ + 1;
    ask();
  }

 private:
  // Lane l gets the place of page l of window next_, counted from its first listed page: a window
  // before they are needed. A window has at most 16 pages.
  __device__ __forceinline__ void load_places() {
    if (next_ >= count_) return;
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
    const int32_t entry = dealt_.windows[next_].entry + lane;
    const int32_t* places = places_of(p_, p_.first_seq + blockIdx.z, blockIdx.y);
    next_places_ = entry < p_.max_places ? places[entry] : 0;
  }

  // Of a tile of the window that is being copied, from keys_ on, in elements.
  __device__ __forceinline__ int64_t offset_of(int32_t tile) const {
    if constexpr (kPages == Pages::kInBlocks) {
      return tile * kTileTokens * C::kHeadDim;
    } else {
      const TileOfPage at = tile_of_gathered<C>(p_, tiles_, tile);
      int64_t block = at.page;
      if constexpr (kPages == Pages::kInPlaces) block = __shfl_sync(kFullWarp, places_, at.page);
      return block * (p_.kv_stride_bytes / static_cast<int64_t>(sizeof(uint16_t))) + at.offset;
    }
  }

  const DecodeParams& p_;
  const Dealt& dealt_;
  Ring<C>& ring_;
  const uint16_t* keys_ = nullptr;
  int32_t num_tokens_ = 0;
  uint32_t tiles_ = 0;       // listed
  int32_t places_ = 0;       // of the window's pages, one a lane
  int32_t next_places_ = 0;  // of those of window next_
  int32_t next_;
  int32_t count_;
  uint32_t queue_ = 0;
  uint32_t to_fill_ = 0;
  uint32_t to_use_ = 0;
};

// The result of a half: heads 2 c and 2 c + 1, laid out as Partial. max_sum.x is the half's maximum
// from the start.
template <typename C>
struct HalfSum {
  float2 max_sum[2];
  float acc[C::kSteps][4];
};

// Adds a strip to the strips before it, with the weight exp(strip's max - half's max).
template <typename C>
__device__ __forceinline__ void add_strip(Partial<C>& strip, HalfSum<C>& half) {
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    const float2 own = {strip.max[0][head], sum_of_tokens(strip.sum[0][head])};
    if (__any_sync(kFullWarp, shows_nothing(own))) {
#pragma unroll
      for (int m = 0; m < C::kSteps; ++m) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          if (shows_nothing(own)) strip.acc[0][m][2 * b + head] = 0.0f;
        }
      }
    }
    float2& sum = half.max_sum[head];
    const float weight = exp_of_difference(own.x, reference_of(sum.x));
    sum.y = __fmaf_rn(own.y, weight, sum.y);
#pragma unroll
    for (int m = 0; m < C::kSteps; ++m) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        float& acc = half.acc[m][2 * b + head];
        acc = __fmaf_rn(strip.acc[0][m][2 * b + head], weight, acc);
      }
    }
  }
}

// The scores of a half's listed tiles, and the largest of each head: only with that can strips be
// added up one after the other. Not unrolled: each loop runs once or twice, and instruction-cache
// misses would cost more.
template <typename C, typename TileRing>
__device__ __forceinline__ void score_half(const DecodeParams& p, uint32_t tiles,
                                           int32_t num_tokens, int32_t lane,
                                           const Queries<C>& queries, TileRing& ring,
                                           float4 (*kept)[kWarpThreads], HalfSum<C>& half) {
  float maxima[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (; tiles != 0; tiles &= tiles - 1) {
    const int32_t tile = __ffs(tiles) - 1;
    Scores<C> scores;
    multiply_keys<C>(0, p, ring.wait(), queries, num_tokens - tile * kTileTokens, lane, scores);
    ring.leave();
    const float(&score)[4] = scores.data[0][0];
    maxima[0] = fmaxf(maxima[0], fmaxf(score[0], score[2]));
    maxima[1] = fmaxf(maxima[1], fmaxf(score[1], score[3]));
    kept[tile][lane] = {score[0], score[1], score[2], score[3]};
  }
#pragma unroll
  for (int head = 0; head < 2; ++head) {
#pragma unroll
    for (int step = 4; step < kWarpThreads; step *= 2) {
      maxima[head] = fmaxf(maxima[head], __shfl_xor_sync(kFullWarp, maxima[head], step));
    }
    half.max_sum[head] = {maxima[head], 0.0f};
  }
}

// Computes half a window with at least one listed tile: the scores of all its tiles, then P V strip
// by strip. Tiles come from the ring in this order.
template <typename C, typename TileRing>
__device__ __forceinline__ void compute_half(const DecodeParams& p, uint32_t tiles,
                                             int32_t num_tokens, int32_t lane,
                                             const Queries<C>& queries, TileRing& ring,
                                             float4 (*kept)[kWarpThreads], HalfSum<C>& half) {
  half = {};
  score_half(p, tiles, num_tokens, lane, queries, ring, kept, half);
#pragma unroll 1
  for (int s = 0; s < kStripsOfHalf; ++s, tiles >>= kTiles) {
    if ((tiles & 3u) == 0) {
      // block.cu adds strips that show nothing, too, which turns -0 into 0; so does this.
#pragma unroll
      for (int m = 0; m < C::kSteps; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) half.acc[m][e] = __fadd_rn(half.acc[m][e], 0.0f);
      }
      continue;
    }
    Partial<C> strip;
    begin<C>(nullptr, false, strip);
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i) {
      if ((tiles >> i & 1u) == 0) continue;
      const float4 score = kept[s * kTiles + i][lane];
      Scores<C> scores;
      scores.data[0][0][0] = score.x;
      scores.data[0][0][1] = score.y;
      scores.data[0][0][2] = score.z;
      scores.data[0][0][3] = score.w;
      update_softmax<C, false>(0, scores, strip);
      multiply_values<C>(0, p, ring.wait(), kTileTokens, lane, scores, strip);
      ring.leave();
    }
    add_strip(strip, half);
  }
}

// Writes the result of a half or, after the first half has been written, of the window; `first` is
// (max, sum) of the first half.
template <typename C>
__device__ __forceinline__ void store_half(const DecodeParams& p, const Place& place,
                                           int32_t window, bool is_second, int32_t lane,
                                           const HalfSum<C>& half, float2 (&first)[2]) {
#pragma unroll
  for (int head = 0; head < 2; ++head) {
    const int32_t column = lane % 4 * 2 + head;
    if (column >= place.num_heads) continue;
    const int64_t index = partial_index(p, blockIdx.z, place.first_head + column, window);
    float* acc = p.partial_acc + index * C::kHeadDim + lane / 4;
    float2 max_sum = half.max_sum[head];
    HalfWeights weights = {};
    if (is_second) max_sum = sum_of_halves(first[head], max_sum, weights);
#pragma unroll
    for (int m = 0; m < C::kSteps; ++m) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        float& written = acc[16 * m + 8 * b];
        float value = half.acc[m][2 * b + head];
        if (is_second) {
          // An empty first half was not written: its memory must not be used.
          const float before = weights.first < 0.0f ? 0.0f : written;
          value = sum_of_halves(before, value, weights);
        }
        written = value;
      }
    }
    first[head] = max_sum;
    if (lane < 4) p.partial_max_sum[index] = max_sum;
  }
}

// The queries of a dealt window.
template <bool kZones>
__device__ __forceinline__ const uint16_t* queries_of(const DecodeParams& p, const DecodeRow& row,
                                                      const ListedWindow& window) {
  if constexpr (kZones) {
    return queries_of_window(p, row, row.kv_begin + window.index * kMaxWindowTokens);
  } else {
    return p.q;
  }
}

// Replaces a warp's queries where its next window lies in another zone: at most twice, since a
// warp's windows ascend. Waits for the tiles in flight, too; copies after it are counted as before.
template <typename C>
__device__ __forceinline__ void replace_queries(const uint16_t* source, int32_t num_heads,
                                                int32_t lane, Ring<C>& ring, Queries<C>& queries) {
  __syncwarp();  // all lanes have loaded the last ones
  copy_rows<C, C::kHeads>(source, num_heads, lane, ring.queries);
  end_of_copies();
  wait_for_copies_but<0>();
  __syncwarp();
  load_queries(ring.queries, lane, queries);
}

// grid: blocks of a list x KV heads x sequences of the round. Warps of a block take its windows in
// turn and do not synchronise after `locate`.
template <typename C, Pages kPages, bool kZones>
__global__ void __launch_bounds__(kWarps* kWarpThreads, 3)
    decode_listed_windows(const DecodeParams p) {
  __shared__ Dealt dealt;
  let_next_kernel_start();
  const Place place = make_place<C>(p);
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
  Ring<C>& ring = reinterpret_cast<Ring<C>*>(dynamic_shared_memory())[warp];
  const DecodeRow row = decode_row(p, place.seq);
  wait_for_earlier_work();
  const List list = make_list(p, row, place.seq, place.kv_head);
  if (row.row < 0) return;
  const Share share = deal(p, list, place, dealt);
  if (share.count == 0) return;
  const int64_t first_query = (row.row * p.num_q_heads + place.first_head) * C::kHeadDim;
  // Warps without a window have those of the last one, and do not use them.
  copy_rows<C, C::kHeads>(
      queries_of<kZones>(p, row, dealt.windows[min(warp, share.count - 1)]) + first_query,
      place.num_heads, lane, ring.queries);
  locate<C, kPages>(p, row, place, share, dealt);
  Tiles<C, kPages> tiles(p, dealt, share, ring);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) tiles.ask();
  if (warp >= share.count) return;
  // The queries came with the first group of copies.
  tiles.wait();
  Queries<C> queries;
  load_queries(ring.queries, lane, queries);
  for (int32_t i = warp; i < share.count; i += kWarps) {
    const ListedWindow& window = dealt.windows[i];
    const uint32_t listed = window.tiles;
    if constexpr (kZones) {
      const uint16_t* of_zone = queries_of<true>(p, row, window);
      if (i > warp && of_zone != queries_of<true>(p, row, dealt.windows[i - kWarps])) {
        replace_queries<C>(of_zone + first_query, place.num_heads, lane, ring, queries);
      }
    }
    float2 first[2] = {nothing_visible(), nothing_visible()};
#pragma unroll 1
    for (int32_t h = 0; h < 2; ++h) {
      const uint32_t of_half = listed >> h * kHalfTiles & ((1u << kHalfTiles) - 1);
      if (of_half == 0) continue;
      HalfSum<C> half;
      compute_half(p, of_half, window.num_tokens - h * kHalfTokens, lane, queries, tiles,
                   ring.scores, half);
      store_half(p, place, share.first + i, h == 1, lane, half, first);
    }
  }
}

// As many blocks per list as fit the GPU at once, but enough that none is dealt more than
// kMostDealt windows.
template <typename C, Pages kPages, bool kZones>
void launch(CudaStream& stream, const DecodeParams& p) {
  const int32_t num_lists = p.num_kv_heads * p.num_seqs;
  // Three blocks fit a multiprocessor (launch bounds).
  const int32_t most = 3 * stream.cuda_device().properties().multiProcessorCount;
  const int32_t wanted = std::min((p.num_windows + kWarps - 1) / kWarps, most / num_lists);
  const int32_t num_blocks = std::max(wanted, (p.num_windows + kMostDealt - 1) / kMostDealt);
  constexpr size_t shared_bytes = kWarps * sizeof(Ring<C>);
  static_assert(shared_bytes <= kLeastSharedBytes);
  auto* kernel = decode_listed_windows<C, kPages, kZones>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             "cudaFuncSetAttribute");
  launch_early(
      stream, kernel,
      {.grid = dim3(static_cast<unsigned>(num_blocks), static_cast<unsigned>(p.num_kv_heads),
                    static_cast<unsigned>(p.num_seqs)),
       .block = dim3(kWarps * kWarpThreads),
       .shared_bytes = shared_bytes},
      p);
}

template <typename C, bool kZones>
void launch(CudaStream& stream, const DecodeParams& p) {
  if (p.page_places != nullptr) return launch<C, Pages::kInPlaces, kZones>(stream, p);
  p.gathered ? launch<C, Pages::kSideBySide, kZones>(stream, p)
             : launch<C, Pages::kInBlocks, kZones>(stream, p);
}

template <bool kZones>
void launch_zones(CudaStream& stream, const DecodeParams& p) {
  p.head_dim == 128 ? launch<Config<128, 1, true>, kZones>(stream, p)
                    : launch<Config<64, 1, true>, kZones>(stream, p);
}

}  // namespace

void launch_decode_listed_windows(CudaStream& stream, const DecodeParams& p) {
  p.chunk_tokens > 0 ? launch_zones<true>(stream, p) : launch_zones<false>(stream, p);
}

}  // namespace sluice::cuda
