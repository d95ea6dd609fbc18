// How a cluster of blocks works on one row of logits: passes over its tokens, sums over all of its
// threads, and the selection of the k-th token of an order.
//
// Used by sample.cu only. Every function here is called by all threads of the cluster, in the same
// order. A row is read again from L2 by every pass; nothing of it is kept in memory in between, so
// sampling needs no scratch.
#pragma once

#include <cstdint>

#include <cooperative_groups.h>

#include "ops/cuda/common.cuh"

namespace sluice::cuda {

inline constexpr int kSampleThreads = 512;  // of a block
inline constexpr int kMaxClusterBlocks = 8;
inline constexpr int kSampleWarps = kSampleThreads / kWarpThreads;
inline constexpr int kDigitBins = 2048;
inline constexpr int kMaxTop = 256;  // log-probabilities listed per row

// Shared memory of one block; the blocks of a cluster read each other's.
struct SampleShared {
  uint64_t partials[2][8];  // one value, of alternate reductions
  uint64_t warp_partials[kSampleWarps][8];
  uint32_t histogram[kDigitBins];
  uint32_t warp_counts[kSampleWarps];
  uint32_t found[3];           // digit, tokens above it, tokens in it
  uint32_t banned_groups[64];  // a bit per group of 4 ids, modulo 2048
  uint64_t top[kMaxTop];
  uint32_t num_top;
};

// The blocks that share a row: a cluster where the GPU has clusters (compute capability 9.0), a
// single block elsewhere.
struct RowBlocks {
  __device__ static unsigned count() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (return cooperative_groups::this_cluster().num_blocks();),
                 (return 1;))
  }
  __device__ static unsigned rank() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (return cooperative_groups::this_cluster().block_rank();),
                 (return 0;))
  }
  __device__ static void sync() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (cooperative_groups::this_cluster().sync();),
                 (__syncthreads();))
  }
  // What lies at `mine` in the shared memory of block `rank`.
  template <typename T>
  __device__ static T* of_block(T* mine, unsigned rank) {
    NV_IF_TARGET(NV_PROVIDES_SM_90,
                 (return cooperative_groups::this_cluster().map_shared_rank(mine, rank);),
                 (return mine;))
  }
};

struct SampleRow {
  const float* logits;
  int32_t vocab;
  bool aligned;               // groups can be loaded as vectors
  const int32_t* suppressed;  // ids, -1 pads
  int32_t num_suppressed;
};

// The place of a token in the order in which filters keep tokens, larger first: by value, then by
// lower id. Every token of a row has a place of its own, so any prefix of the order is
// `place >= border`.
__device__ inline uint64_t place_of(float value, int32_t id) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is 0
  const uint32_t key = bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
  return static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline int32_t id_at(uint64_t place) {
  return static_cast<int32_t>(~static_cast<uint32_t>(place));
}

class SampleCluster {
 public:
  __device__ SampleCluster(SampleShared& shared, const SampleRow& row)
      : shared_(shared), row_(row) {
    for (int i = threadIdx.x; i < 64; i += kSampleThreads) shared_.banned_groups[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.num_suppressed; i += kSampleThreads) {
      const uint32_t group = static_cast<uint32_t>(row.suppressed[i]) / 4;
      if (row.suppressed[i] >= 0) {
        atomicOr(&shared_.banned_groups[group / 32 % 64], 1u << (group % 32));
      }
    }
    __syncthreads();
  }

  __device__ bool is_first_block() const { return RowBlocks::rank() == 0; }

  // Calls fn(first_id, logits of 4 ids, mask of the suppressed ones) for every group of 4 ids. Ids
  // behind the vocabulary have logit -inf. Which thread gets a group depends on `vocab` alone.
  template <typename Fn>
  __device__ void for_each_group(Fn&& fn) const {
    constexpr int kBatch = 2;  // groups loaded at once
    const int num_threads = static_cast<int>(RowBlocks::count()) * kSampleThreads;
    const int num_groups = (row_.vocab + 3) / 4;
    const int first = static_cast<int>(RowBlocks::rank()) * kSampleThreads + threadIdx.x;
    for (int begin = first; begin < num_groups; begin += kBatch * num_threads) {
      float4 batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int group = begin + i * num_threads;
        if (group < num_groups) batch[i] = load_group(group);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int group = begin + i * num_threads;
        if (group >= num_groups) continue;
        const float values[4] = {batch[i].x, batch[i].y, batch[i].z, batch[i].w};
        fn(4 * group, values, banned_mask(group));
      }
    }
  }

  // `value` of all threads combined in a fixed order; the same bits in every thread.
  // REQUIRES: `combine` is commutative; T has at most 8 words of 64 bits and no padding.
  template <typename T, typename Combine>
  __device__ T reduce(T value, Combine combine) {
    static_assert(sizeof(T) % 8 == 0 && sizeof(T) <= 64);
#pragma unroll
    for (int step = kWarpThreads / 2; step > 0; step /= 2) {
      value = combine(value, shuffle_xor(value, step));
    }
    if (threadIdx.x % kWarpThreads == 0) {
      *reinterpret_cast<T*>(shared_.warp_partials[threadIdx.x / kWarpThreads]) = value;
    }
    __syncthreads();
    value = *reinterpret_cast<const T*>(shared_.warp_partials[0]);
    for (int warp = 1; warp < kSampleWarps; ++warp) {
      value = combine(value, *reinterpret_cast<const T*>(shared_.warp_partials[warp]));
    }
    // Two places in turn, so that the barrier of the next reduction keeps a fast block from
    // overwriting what a slow one still reads.
    uint64_t* mine = shared_.partials[turn_];
    turn_ ^= 1;
    if (threadIdx.x == 0) *reinterpret_cast<T*>(mine) = value;
    RowBlocks::sync();
    value = *reinterpret_cast<const T*>(RowBlocks::of_block(mine, 0));
    for (unsigned block = 1; block < RowBlocks::count(); ++block) {
      value = combine(value, *reinterpret_cast<const T*>(RowBlocks::of_block(mine, block)));
    }
    return value;
  }

  // The place of the k-th token of the order, k >= 1, or a lower one that holds no other token.
  // `place` gives the place of (value, id, suppressed), 0 for a token that does not count.
  // REQUIRES: at least k tokens count.
  //
  // A radix selection over 64-bit places, 11 or 10 bits a pass. The first three passes choose the
  // value; the others, which only ties at the border need, choose among its ids.
  template <typename Place>
  __device__ uint64_t select(uint32_t k, Place place) {
    uint64_t prefix = 0;
    int shift = 64;
    for (int level = 0;; ++level) {
      const int width = level % 3 == 2 ? 10 : 11;
      shift -= width;
      count_digits(prefix, shift, width, place);
      find_digit(k);
      k -= shared_.found[1];
      prefix = prefix << width | shared_.found[0];
      // All of them, or all digits known: the border is below the last of the bin.
      if (shared_.found[2] == k || shift == 0) return prefix << shift;
    }
  }

  // Appends to the list that the cluster's first block keeps. REQUIRES: `clear_top` before, then at
  // most kMaxTop calls.
  __device__ void append_top(uint64_t place) {
    const uint32_t index = atomicAdd(RowBlocks::of_block(&shared_.num_top, 0), 1u);
    if (index < kMaxTop) RowBlocks::of_block(shared_.top, 0)[index] = place;
  }
  __device__ void clear_top() {
    if (threadIdx.x == 0) shared_.num_top = 0;
    RowBlocks::sync();
  }

  __device__ void sync() { RowBlocks::sync(); }

 private:
  __device__ float4 load_group(int group) const {
    const float* source = row_.logits + 4 * static_cast<int64_t>(group);
    if (row_.aligned) return *reinterpret_cast<const float4*>(source);
    const auto at = [&](int i) { return 4 * group + i < row_.vocab ? source[i] : -INFINITY; };
    return {at(0), at(1), at(2), at(3)};
  }

  // Which of the group's ids are suppressed; the list is read for one group in 2048 at least.
  __device__ uint32_t banned_mask(int group) const {
    if ((shared_.banned_groups[group / 32 % 64] >> (group % 32) & 1) == 0) return 0;
    uint32_t mask = 0;
    for (int i = 0; i < row_.num_suppressed; ++i) {
      const int32_t id = row_.suppressed[i];
      if (id >= 0 && id / 4 == group) mask |= 1u << (id % 4);
    }
    return mask;
  }

  template <typename T>
  __device__ static T shuffle_xor(const T& value, int step) {
    uint64_t words[sizeof(T) / 8];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 8); ++i) {
      words[i] = __shfl_xor_sync(kFullWarp, words[i], step);
    }
    T shuffled;
    memcpy(&shuffled, words, sizeof(T));
    return shuffled;
  }

  // Each block's histogram of the digit at `shift` of the places that begin with `prefix`. Integer
  // counts: the order of the atomic additions leaves no trace.
  template <typename Place>
  __device__ void count_digits(uint64_t prefix, int shift, int width, Place place) {
    for (int bin = threadIdx.x; bin < kDigitBins; bin += kSampleThreads) {
      shared_.histogram[bin] = 0;
    }
    __syncthreads();
    const uint64_t mask = (uint64_t{1} << width) - 1;
    for_each_group([&](int first_id, const float(&values)[4], uint32_t banned) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint64_t at = place(values[i], first_id + i, (banned >> i & 1) != 0);
        // Shifted twice, since a shift by 64 is undefined.
        if (at != 0 && at >> shift >> width == prefix) {
          atomicAdd(&shared_.histogram[at >> shift & mask], 1u);
        }
      }
    });
    RowBlocks::sync();
  }

  // Finds the bin of the k-th token, counted from the highest bin, over the histograms of all
  // blocks: found = {bin, tokens in higher bins, tokens in it}. Every block does it for itself.
  __device__ void find_digit(uint32_t k) {
    constexpr int kBins = kDigitBins / kSampleThreads;  // of a thread
    const int highest = kDigitBins - 1 - static_cast<int>(threadIdx.x) * kBins;
    uint32_t counts[kBins] = {};
    for (unsigned block = 0; block < RowBlocks::count(); ++block) {
      const uint32_t* histogram = RowBlocks::of_block(shared_.histogram, block);
#pragma unroll
      for (int i = 0; i < kBins; ++i) counts[i] += histogram[highest - i];
    }
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kBins; ++i) sum += counts[i];
    uint32_t above = tokens_before(sum);
#pragma unroll
    for (int i = 0; i < kBins; ++i) {
      if (above < k && k <= above + counts[i]) {
        shared_.found[0] = static_cast<uint32_t>(highest - i);
        shared_.found[1] = above;
        shared_.found[2] = counts[i];
      }
      above += counts[i];
    }
    RowBlocks::sync();  // also: nobody clears a histogram that another block still reads
  }

  // The sum of `count` over the lower threads of the block.
  __device__ uint32_t tokens_before(uint32_t count) {
    uint32_t inclusive = count;
    const int lane = threadIdx.x % kWarpThreads;
#pragma unroll
    for (int step = 1; step < kWarpThreads; step *= 2) {
      const uint32_t lower = __shfl_up_sync(kFullWarp, inclusive, step);
      if (lane >= step) inclusive += lower;
    }
    if (lane == kWarpThreads - 1) shared_.warp_counts[threadIdx.x / kWarpThreads] = inclusive;
    __syncthreads();
    uint32_t before = inclusive - count;
    for (int warp = 0; warp < static_cast<int>(threadIdx.x) / kWarpThreads; ++warp) {
      before += shared_.warp_counts[warp];
    }
    return before;
  }

  SampleShared& shared_;
  const SampleRow& row_;
  int turn_ = 0;
};

}  // namespace sluice::cuda
