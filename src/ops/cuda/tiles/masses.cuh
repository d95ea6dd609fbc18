// Masses of tiles from records, in the arithmetic that ops/tiles/tile_selection.h fixes.
//
// Bound: two exponentials for each record. Tile: a warp computes the log-sum-exp of a probe, then
// each thread adds the shares of its own KV tiles. Used by tiles/select_tiles.cu and
// tiles/tile_masses.cu, which are compiled without contraction, as ops/portable_math.h requires:
// the bits are those of the CPU. Thread rule: device code; all threads of a block call find_masses.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/common.cuh"
#include "ops/portable_math.h"
#include "ops/tiles/tile_rule.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::cuda {

inline constexpr int kMassThreads = 512;  // of a block
inline constexpr int kMassWarps = kMassThreads / kWarpThreads;
inline constexpr int kProbesAtOnce = 64;  // whose log-sum-exp are in shared memory
static_assert(kRecordLanes == kWarpThreads);

// Which heads count in a segment; all if there are no patterns.
struct HeadsCall {
  const int32_t* patterns;  // [num_q_heads][num_segments]
  int32_t num_segments;
  int32_t tiles_per_segment;

  __device__ bool counts(int32_t head, int32_t entry) const {
    if (patterns == nullptr) return true;
    const int64_t row = static_cast<int64_t>(head) * num_segments;
    return patterns[row + entry / tiles_per_segment] == static_cast<int32_t>(HeadPattern::kTiles);
  }
};

// Records of the query tiles (or segments) of some rows, and the heads that share a list.
struct RecordsCall {
  const float* records;  // [num_q_heads][num_probes][num_kv_tiles]
  float* lse;            // [num_q_heads][num_probes]: receives the log-sum-exp; null: not wanted
  int32_t per_tile;
  int32_t num_probes;
  int32_t num_kv_tiles;
  int32_t heads_per_list;
  HeadsCall heads;
};

// The probes at hand.
struct ProbeSums {
  const float* records[kProbesAtOnce];
  float lse[kProbesAtOnce];
};

// The log-sum-exp of a probe's records, in the order that ops/tiles/tile_selection.h gives. All
// lanes get it. REQUIRES: the whole warp calls it.
__device__ inline float log_sum_exp(const float* records, int32_t count) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  float largest = -INFINITY;
#pragma unroll 4
  for (int32_t j = lane; j < count; j += kWarpThreads) largest = fmaxf(largest, records[j]);
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
  }
  // fmaxf leaves NaN out; the sum brings it back.
  float sum = 0.0f;
#pragma unroll 4
  for (int32_t j = lane; j < count; j += kWarpThreads) sum += fast_exp(records[j] - largest);
  return largest + fast_log(group_sum<kWarpThreads>(sum));
}

// Loads kProbesAtOnce or fewer probes of the list, from `first` on: where their records are, and
// their log-sum-exp over `num_visible` tiles, NaN for heads that do not count.
__device__ inline void find_log_sums(const RecordsCall& call, int32_t list_head, int32_t entry,
                                     int32_t first, int32_t num_visible, ProbeSums& shared) {
  const int32_t count = min(kProbesAtOnce, call.heads_per_list * call.per_tile - first);
  for (int32_t i = threadIdx.x / kWarpThreads; i < count; i += kMassWarps) {
    const int32_t head = list_head * call.heads_per_list + (first + i) / call.per_tile;
    const int64_t probe = static_cast<int64_t>(head) * call.num_probes + entry * call.per_tile +
                          (first + i) % call.per_tile;
    const float* records = call.records + probe * call.num_kv_tiles;
    const bool counts = call.heads.counts(head, entry);
    const float lse = counts ? log_sum_exp(records, num_visible) : NAN;
    if (threadIdx.x % kWarpThreads != 0) continue;
    shared.records[i] = records;
    shared.lse[i] = lse;
    if (call.lse != nullptr) call.lse[probe] = lse;
  }
}

// Writes the integer masses of KV tiles [0, num_visible), all 0 without a usable probe, to shared
// or global memory. A thread reads and writes tiles threadIdx.x, threadIdx.x + kMassThreads, ...;
// others may read them after the next barrier.
__device__ inline void find_masses(const RecordsCall& call, int32_t list_head, int32_t entry,
                                   int32_t num_visible, ProbeSums& shared, uint32_t* masses) {
  auto* shares = reinterpret_cast<float*>(masses);  // until the last probe has been added
  const int32_t num_probes = call.heads_per_list * call.per_tile;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t num_usable = 0;
  for (int32_t j = thread; j < num_visible; j += kMassThreads) shares[j] = 0.0f;
  for (int32_t first = 0; first < num_probes; first += kProbesAtOnce) {
    const int32_t count = min(kProbesAtOnce, num_probes - first);
    find_log_sums(call, list_head, entry, first, num_visible, shared);
    __syncthreads();
    for (int32_t i = 0; i < count; ++i) num_usable += isfinite(shared.lse[i]) ? 1 : 0;
    for (int32_t j = thread; j < num_visible; j += kMassThreads) {
      float share = shares[j];
#pragma unroll 4
      for (int32_t i = 0; i < count; ++i) {
        const float lse = shared.lse[i];
        if (isfinite(lse)) share += fast_exp(shared.records[i][j] - lse);
      }
      shares[j] = share;
    }
    __syncthreads();  // before the next probes
  }
  for (int32_t j = thread; j < num_visible; j += kMassThreads) {
    masses[j] = num_usable > 0 ? to_mass(shares[j] / static_cast<float>(num_usable)) : 0;
  }
}

}  // namespace sluice::cuda
