// The threshold of a page list on CUDA: the smallest score among its num_wanted best pages.
//
// Used by pages/page_selection.cu, which writes the pages that pass the threshold. A radix search:
// 2048 bins of even width cover the range of the scores, the bin of the threshold is the next
// range, and two rounds nearly always suffice, since few scores share a bin then. Scores are
// compared as integers of the same order, so the result is exact. Thread rule: device code; all
// kThreads threads of a block call these together, and all blocks of a cluster that share a list.
#pragma once

#include <cstdint>

#include "ops/cuda/cluster_blocks.cuh"
#include "ops/cuda/common.cuh"

namespace sluice::cuda::selection {

inline constexpr int kThreads = 1024;
inline constexpr int kNumWarps = kThreads / kWarpThreads;
static_assert(kNumWarps == kWarpThreads);  // a lane reads each warp's sum
inline constexpr int kLog2Bins = 11;
inline constexpr int kNumBins = 1 << kLog2Bins;
inline constexpr int kBinsPerThread = kNumBins / kThreads;
inline constexpr int kBatch = 8;  // scores that a thread loads at once
inline constexpr int kMaxListBlocks = 8;
inline constexpr int kHeldScores = kThreads * kBatch;  // that a block has in registers

// Pages [begin, end). A page's score for the list is the sum over `num_summed` heads, head_stride
// floats apart, in ascending order.
struct Candidates {
  const float* scores;
  int64_t head_stride;
  int32_t num_summed;
  int32_t begin;
  int32_t end;
};

// The part of the candidates that this block handles, of the blocks that share the list.
__device__ inline Candidates part_of_block(Candidates all) {
  const auto count = static_cast<int32_t>(ClusterBlocks::count());
  const int32_t of_block = (all.end - all.begin + count - 1) / count;
  all.begin = min(all.begin + static_cast<int32_t>(ClusterBlocks::rank()) * of_block, all.end);
  all.end = min(all.begin + of_block, all.end);
  return all;
}

// A score as an integer of the same order; both zeros are one number, NaN is -inf. No score has the
// key 0.
__device__ __forceinline__ uint32_t key_of(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The threshold is among the keys [low, low + last]; the `num_wanted` largest of these are taken,
// and all keys above them. With last == 0 the threshold is `low`.
struct Range {
  uint32_t low;
  uint32_t last;
  int32_t num_wanted;
};

// Shared memory of a block; some 17 KiB, most of them bins.
struct Shared {
  Range range;
  alignas(8) int32_t bins[kNumBins];      // read two at a time
  alignas(8) int32_t all_bins[kNumBins];  // of all blocks that share the list together
  int32_t bin_sums[kNumWarps];
  uint2 key_ranges[kNumWarps];  // smallest and largest key of each warp
  int2 num_passing[kNumWarps];  // above the threshold, equal to it
  // Of each block that shares the list, pushed by it.
  uint2 key_ranges_of_blocks[kMaxListBlocks];
  int2 num_passing_of_blocks[kMaxListBlocks];
};

// Writes this block's value to every block that shares the list. REQUIRES: the first warp calls it,
// each lane with the same value. Order: visible after the cluster's next barrier.
template <typename T>
__device__ __forceinline__ void push_to_blocks(T (&of_blocks)[kMaxListBlocks], const T& own) {
  const unsigned block = threadIdx.x;
  if (block >= ClusterBlocks::count()) return;
  *ClusterBlocks::of_block(&of_blocks[ClusterBlocks::rank()], block) = own;
}

// The keys of this thread's warp: a contiguous range of pages, one per lane and turn, ascending.
// The first kBatch turns, all of a list of up to 8192, stay in registers; later ones are loaded in
// each pass.
class Keys {
 public:
  __device__ explicit Keys(const Candidates& candidates)
      : candidates_(candidates),
        num_turns_((candidates.end - candidates.begin + kThreads - 1) / kThreads) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    own_ = candidates.begin + thread / kWarpThreads * kWarpThreads * num_turns_ +
           thread % kWarpThreads;
    load(0, first_);
  }

  // Calls fn(page, key), with key 0 where there is no page. REQUIRES: the whole warp calls it.
  template <typename Fn>
  __device__ __forceinline__ void for_each(Fn fn) const {
    call(0, first_, fn);
    for (int32_t turn = kBatch; turn < num_turns_; turn += kBatch) {
      uint32_t keys[kBatch];
      load(turn, keys);
      call(turn, keys, fn);
    }
  }

 private:
  // Loads kBatch turns at once, so that their latencies overlap.
  __device__ __forceinline__ void load(int32_t first_turn, uint32_t (&keys)[kBatch]) const {
    const int32_t first = own_ + first_turn * kWarpThreads;
    const int32_t count = min(num_turns_ - first_turn, kBatch);
    const auto exists = [&](int i) {
      return i < count && first + i * kWarpThreads < candidates_.end;
    };
    float sums[kBatch] = {};
    const float* scores = candidates_.scores + first;
    for (int32_t h = 0; h < candidates_.num_summed; ++h, scores += candidates_.head_stride) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (exists(i)) sums[i] = __fadd_rn(sums[i], scores[i * kWarpThreads]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) keys[i] = exists(i) ? key_of(sums[i]) : 0;
  }

  template <typename Fn>
  __device__ __forceinline__ void call(int32_t first_turn, const uint32_t (&keys)[kBatch],
                                       Fn fn) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first_turn + i >= num_turns_) return;
      fn(own_ + (first_turn + i) * kWarpThreads, keys[i]);
    }
  }

  Candidates candidates_;
  int32_t num_turns_;
  int32_t own_;  // first page
  uint32_t first_[kBatch];
};

// Sets shared.range to the range of all keys, over all blocks of the list. REQUIRES, as for the
// functions below: every thread calls it.
template <bool kClustered>
__device__ inline void find_key_range(const Keys& keys, int32_t num_wanted, Shared& shared) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  uint32_t low = ~0u, high = 0;
  keys.for_each([&](int32_t, uint32_t key) {
    high = max(high, key);
    low = min(low, key == 0 ? ~0u : key);
  });
  const auto reduce = [&] {
    low = __reduce_min_sync(kFullWarp, low);
    high = __reduce_max_sync(kFullWarp, high);
  };
  reduce();
  if (lane == 0) shared.key_ranges[threadIdx.x / kWarpThreads] = {low, high};
  __syncthreads();
  const bool is_first_warp = threadIdx.x < kWarpThreads;
  if (is_first_warp) {
    low = shared.key_ranges[lane].x;
    high = shared.key_ranges[lane].y;
    reduce();
  }
  if constexpr (kClustered) {
    if (is_first_warp) push_to_blocks(shared.key_ranges_of_blocks, uint2{low, high});
    ClusterBlocks::sync();
    if (is_first_warp) {
      const bool is_block = lane < static_cast<int32_t>(ClusterBlocks::count());
      low = is_block ? shared.key_ranges_of_blocks[lane].x : ~0u;
      high = is_block ? shared.key_ranges_of_blocks[lane].y : 0;
      reduce();
    }
  }
  // Read after the barrier of the first round.
  if (threadIdx.x == 0) shared.range = {low, high - low, num_wanted};
}

// Adds up the bins of all blocks that share the list: each block sums a part of the bins and writes
// it to the others; if each block read all bins of all blocks, the remote reads would dominate.
// Order: after a barrier of the cluster; visible after the next, after which bins may be cleared.
__device__ inline void add_up_bins(Shared& shared) {
  const unsigned num_blocks = ClusterBlocks::count();
  const unsigned num_threads = kNumBins / 2 / num_blocks;  // two bins a thread
  if (threadIdx.x >= num_threads) return;
  const unsigned first = (ClusterBlocks::rank() * num_threads + threadIdx.x) * 2;
  const auto of_block = [&](int32_t* bins, unsigned block) {
    return reinterpret_cast<int2*>(ClusterBlocks::of_block(bins + first, block));
  };
  int2 sum = {};
#pragma unroll
  for (unsigned block = 0; block < kMaxListBlocks; ++block) {
    const int2 counts = block < num_blocks ? *of_block(shared.bins, block) : int2{};
    sum = {sum.x + counts.x, sum.y + counts.y};
  }
#pragma unroll
  for (unsigned block = 0; block < kMaxListBlocks; ++block) {
    if (block < num_blocks) *of_block(shared.all_bins, block) = sum;
  }
}

// Finds the bin that contains the num_wanted-th largest key of the range, and makes it the next
// range. One thread finds it: each has kBinsPerThread neighbouring bins and the count of all bins
// above.
__device__ inline void choose_bin(const Range& range, int32_t shift, const int32_t* bins,
                                  Shared& shared) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
  // A thread has neighbouring bins.
  int32_t counts[kBinsPerThread];
  int32_t own = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    counts[i] = bins[threadIdx.x * kBinsPerThread + i];
    own += counts[i];
  }
  // `above` becomes the count of higher warps, then also of higher lanes, then of higher bins.
  // Warps that do not contain the wanted rank return early.
  const int32_t of_warp = __reduce_add_sync(kFullWarp, own);
  if (lane == 0) shared.bin_sums[warp] = of_warp;
  __syncthreads();
  const int32_t other = shared.bin_sums[lane];
  int32_t above = __reduce_add_sync(kFullWarp, lane > warp ? other : 0);
  if (above >= range.num_wanted || above + of_warp < range.num_wanted) return;
  int32_t from_here = own;  // keys of this lane's bins and higher ones
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const int32_t next = __shfl_down_sync(kFullWarp, from_here, step);
    if (lane + step < kWarpThreads) from_here += next;
  }
  above += from_here - own;
#pragma unroll
  for (int i = kBinsPerThread - 1; i >= 0; --i) {
    const int32_t num_wanted = range.num_wanted - above;
    if (0 < num_wanted && num_wanted <= counts[i]) {
      const uint32_t first = (threadIdx.x * kBinsPerThread + i) << shift;
      const uint32_t last = min((1u << shift) - 1, range.last - first);
      // If the whole bin is taken, the threshold is just below it and no equal key is taken.
      shared.range = num_wanted == counts[i] ? Range{range.low + first - 1, 0, 0}
                                             : Range{range.low + first, last, num_wanted};
    }
    above += counts[i];
  }
}

// Finds the threshold, 11 bits of the range a round; all blocks of a list get the same. Ends after
// at most three rounds, since keys have 32 bits.
template <bool kClustered>
__device__ inline Range find_threshold(const Keys& keys, int32_t num_wanted, Shared& shared) {
  find_key_range<kClustered>(keys, num_wanted, shared);
  // Invariant: the threshold is in shared.range, whose num_wanted counts the wanted keys inside it;
  // each round narrows the range to one bin.
  while (true) {
    for (int32_t bin = threadIdx.x; bin < kNumBins; bin += kThreads) shared.bins[bin] = 0;
    __syncthreads();
    const Range range = shared.range;
    if (range.last == 0) return range;
    const int32_t shift = max(0, 32 - __clz(static_cast<int>(range.last)) - kLog2Bins);
    keys.for_each([&](int32_t, uint32_t key) {
      const uint32_t offset = key - range.low;
      if (offset <= range.last) atomicAdd(&shared.bins[offset >> shift], 1);
    });
    if constexpr (kClustered) {
      ClusterBlocks::sync();
      add_up_bins(shared);
      ClusterBlocks::sync();
    } else {
      __syncthreads();
    }
    choose_bin(range, shift, kClustered ? shared.all_bins : shared.bins, shared);
    // choose_bin has read the bins before its own barrier, so the next round may clear them.
  }
}

}  // namespace sluice::cuda::selection
