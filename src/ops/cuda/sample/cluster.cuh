// One row of logits on a cluster of blocks: the distribution of tokens over threads, reductions
// over all of them, and the order in which filters keep tokens.
//
// Used by sample/select.cuh, sample/draw.cuh and sample.cu only. Thread rule: device code;
// functions with a barrier are called by all threads of the cluster, in the same order.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cuda/cluster_blocks.cuh"
#include "ops/cuda/common.cuh"

namespace sluice::cuda {

inline constexpr int kSampleThreads = 512;  // of a block
inline constexpr int kSampleWarps = kSampleThreads / kWarpThreads;
inline constexpr int kMaxRowBlocks = 8;            // of a row: the portable cluster size
inline constexpr int kMaxReducedWords = 4;         // of 64 bits, of a reduced value
inline constexpr int kDigitBins = 2048;            // of a digit of 11 bits
inline constexpr int kMaxListed = kSampleThreads;  // tokens that one block puts in order

// Shared memory of one block; the blocks of a cluster read and write each other's.
struct SampleShared {
  uint64_t sums[2][kMaxRowBlocks][kMaxReducedWords];  // every block's, of alternate reductions
  uint64_t warp_sums[kSampleWarps][kMaxReducedWords];
  uint32_t histogram[kDigitBins];
  uint32_t found[3];           // bin, tokens above it, tokens in it
  uint32_t banned_groups[64];  // a bit per group of 4 ids, modulo 2048

  // In the first block only.
  uint64_t listed[kMaxListed];  // places, in any order
  uint64_t sorted[kMaxListed];  // and the highest first
  uint32_t num_listed;
  uint64_t top[kMaxListed];  // places of the tokens whose log-probabilities are written
};

// The inputs of one row.
struct RowLogits {
  const float* logits;
  int32_t vocab;
  bool aligned;               // groups can be loaded as vectors
  const int32_t* suppressed;  // ids, -1 pads
  int32_t num_suppressed;
  const uint32_t* allowed;  // a bit per id; null: all. Read with kChanges only
};

// The place of a token in the order in which filters keep tokens, larger first: by value, then by
// lower id. Places of a row are distinct and never 0, so every prefix of the order is the set of
// tokens with `place > limit` for some limit.
__device__ inline uint64_t place_of(float value, int32_t id) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is 0
  const uint32_t key = bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
  return static_cast<uint64_t>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline int32_t id_at(uint64_t place) {
  return static_cast<int32_t>(~static_cast<uint32_t>(place));
}
__device__ inline float value_at(uint64_t place) {
  const auto key = static_cast<uint32_t>(place >> 32);
  return __uint_as_float(key ^ (key >> 31 != 0 ? 0x80000000u : 0xffffffffu));
}

// The tokens of a row, distributed over the threads of its blocks in groups of 4 neighbouring ids,
// which share a call of Philox. The thread of a group depends on `vocab` alone.
//
// kHeld: a thread keeps its groups in shared memory, so that the row is read from memory once and
// values can be replaced. Otherwise every pass reads the logits again.
// kChanges: some row of the call has adjustments or a given token (sample/changes.cuh).
//
// Passed by value, so that the members stay in registers.
template <bool kHeld, bool kChanges>
class Tokens {
 public:
  __device__ Tokens(SampleShared& shared, const RowLogits& row, float4* held)
      : shared_(shared),
        row_(row),
        held_(held + threadIdx.x),
        first_group_(static_cast<int>(ClusterBlocks::rank() * kSampleThreads + threadIdx.x)),
        group_stride_(static_cast<int>(ClusterBlocks::count() * kSampleThreads)),
        num_groups_((row.vocab + 3) / 4) {}

  // Sets the bits of groups with suppressed ids. Order: a barrier of the block before `load`.
  __device__ void note_suppressed() const {
    for (int i = threadIdx.x; i < row_.num_suppressed; i += kSampleThreads) {
      const uint32_t group = static_cast<uint32_t>(row_.suppressed[i]) / 4;
      if (row_.suppressed[i] >= 0) {
        atomicOr(&shared_.banned_groups[group / 32 % 64], 1u << (group % 32));
      }
    }
  }

  // Calls fn(first_id, logits of 4 ids) for every group of the thread, several loads at a time. Ids
  // beyond the vocabulary have logit -inf. The first pass over the row.
  template <typename Fn>
  __device__ void load(Fn&& fn) const {
    constexpr int kBatch = 4;
    float4* held = held_;
    for (int begin = first_group_; begin < num_groups_; begin += kBatch * group_stride_) {
      float4 batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int group = begin + i * group_stride_;
        if (group < num_groups_) batch[i] = load_group(group);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i, held += kSampleThreads) {
        const int group = begin + i * group_stride_;
        if (group >= num_groups_) continue;
        if (kHeld) *held = batch[i];
        const float values[4] = {batch[i].x, batch[i].y, batch[i].z, batch[i].w};
        fn(4 * group, values);
      }
    }
  }

  // The same calls in a later pass, from shared memory if the row is held there.
  template <typename Fn>
  __device__ void visit(Fn&& fn) const {
    const float4* held = held_;
    for (int group = first_group_; group < num_groups_;
         group += group_stride_, held += kSampleThreads) {
      const float4 loaded = kHeld ? *held : load_group(group);
      float values[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
      fn(4 * group, values);
    }
  }

  // As `visit`, but fn may replace the values; replacements are kept if the row is held.
  template <typename Fn>
  __device__ void update(Fn&& fn) const {
    float4* held = held_;
    for (int group = first_group_; group < num_groups_;
         group += group_stride_, held += kSampleThreads) {
      const float4 loaded = kHeld ? *held : load_group(group);
      float values[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
      fn(4 * group, values);
      if (kHeld) *held = {values[0], values[1], values[2], values[3]};
    }
  }

  // Which of the group's ids may not be chosen. Cost: the list is read for one group in 2048.
  __device__ uint32_t banned_mask(int first_id) const {
    const int group = first_id / 4;
    uint32_t mask = 0;
    if (kChanges && row_.allowed != nullptr) {
      mask = ~(row_.allowed[first_id / 32] >> (first_id % 32)) & 15;
    }
    if (row_.num_suppressed == 0) return mask;
    if ((shared_.banned_groups[group / 32 % 64] >> (group % 32) & 1) == 0) return mask;
    for (int i = 0; i < row_.num_suppressed; ++i) {
      const int32_t id = row_.suppressed[i];
      if (id >= 0 && id / 4 == group) mask |= 1u << (id % 4);
    }
    return mask;
  }

 private:
  // Four logits; -inf beyond the vocabulary.
  __device__ float4 load_group(int group) const {
    const float* source = row_.logits + 4 * static_cast<int64_t>(group);
    if (row_.aligned) return *reinterpret_cast<const float4*>(source);
    const auto at = [&](int i) { return 4 * group + i < row_.vocab ? source[i] : -INFINITY; };
    return {at(0), at(1), at(2), at(3)};
  }

  SampleShared& shared_;
  RowLogits row_;
  float4* held_;
  int first_group_;
  int group_stride_;
  int num_groups_;
};

// Prepares the shared memory of a block. Order: first call of a block; after it every block may
// access every other's shared memory.
template <bool kHeld, bool kChanges>
__device__ void begin_row(SampleShared& shared, const Tokens<kHeld, kChanges>& tokens) {
  for (int i = threadIdx.x; i < 64; i += kSampleThreads) shared.banned_groups[i] = 0;
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  tokens.note_suppressed();
  ClusterBlocks::sync();
}

// An upper bound of the groups of one thread, which sizes the shared memory.
inline int groups_of_a_thread(int32_t vocab, int num_blocks) {
  const int per_round = 4 * kSampleThreads * num_blocks;
  return (vocab + per_round - 1) / per_round;
}

// __shfl_xor_sync for a struct of 64-bit words.
template <typename T>
__device__ T shuffle_xor(const T& value, int step) {
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

// Combines a value of every thread, in a fixed order: the same bits in every thread that gets them.
class Reducer {
 public:
  __device__ explicit Reducer(SampleShared& shared)
      : shared_(shared), num_blocks_(ClusterBlocks::count()), block_(ClusterBlocks::rank()) {}

  // Of the threads of this block; the result is that of the lanes of warp 0.
  // REQUIRES: `combine` is commutative; T is words of 64 bits without padding.
  template <typename T, typename Combine>
  __device__ T of_block(T value, Combine combine) {
    static_assert(sizeof(T) % 8 == 0 && sizeof(T) <= 8 * kMaxReducedWords);
    const int lane = threadIdx.x % kWarpThreads;
    const int warp = threadIdx.x / kWarpThreads;
#pragma unroll
    for (int step = kWarpThreads / 2; step > 0; step /= 2) {
      value = combine(value, shuffle_xor(value, step));
    }
    if (lane == 0) put(shared_.warp_sums[warp], value);
    __syncthreads();
    if (warp == 0) {
      value = get<T>(shared_.warp_sums[lane % kSampleWarps]);
#pragma unroll
      for (int step = kSampleWarps / 2; step > 0; step /= 2) {
        value = combine(value, shuffle_xor(value, step));
      }
    }
    return value;
  }

  // Of all threads of the cluster, the result in every one of them. Also a barrier of the cluster.
  template <typename T, typename Combine>
  __device__ T operator()(T value, Combine combine) {
    value = of_block(value, combine);
    // Two buffers alternate, so that a fast block does not overwrite values that a slow one still
    // reads: it cannot be two barriers ahead. Blocks write to each other instead of reading, so
    // that reads after the barrier are local.
    turn_ ^= 1;
    if (threadIdx.x < num_blocks_) {
      put(ClusterBlocks::of_block(shared_.sums[turn_][block_], threadIdx.x), value);
    }
    ClusterBlocks::sync();
    value = get<T>(shared_.sums[turn_][0]);
    for (unsigned block = 1; block < num_blocks_; ++block) {
      value = combine(value, get<T>(shared_.sums[turn_][block]));
    }
    return value;
  }

 private:
  template <typename T>
  __device__ static void put(uint64_t* words, const T& value) {
    memcpy(words, &value, sizeof(T));
  }
  template <typename T>
  __device__ static T get(const uint64_t* words) {
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
  }

  SampleShared& shared_;
  const unsigned num_blocks_;
  const unsigned block_;
  int turn_ = 0;
};

// The sum of `value` over the lower threads of the block. `warp_sums` is shared memory that must
// not be used otherwise until the next barrier.
template <typename T>
__device__ T sum_before(T value, T* warp_sums) {
  static_assert(kSampleWarps <= kWarpThreads);
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads;
  T inclusive = value;
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const T lower = __shfl_up_sync(kFullWarp, inclusive, step);
    if (lane >= step) inclusive += lower;
  }
  if (lane == kWarpThreads - 1) warp_sums[warp] = inclusive;
  __syncthreads();
  T before = __shfl_up_sync(kFullWarp, inclusive, 1);
  if (lane == 0) before = 0;
  for (int i = warp - 1; i >= 0; --i) before += warp_sums[i];
  return before;
}

}  // namespace sluice::cuda
