// What the kernels of products of pairs sorted by expert share: tiles, copies and results.
//
// A tile has 128 pairs of one expert and 128 rows of its weight, 64 pairs for each of two consumer
// warpgroups; a producer warp brings a panel of 128 bytes of the columns of both factors at a time
// through the copy engine. A CTA computes one tile after the other: while the consumers write one,
// the producer brings the next, whose few panels would take as long to come as to be multiplied.
// Where gate and up are multiplied, 64 rows are gate's and 64 the same of up, so that a thread has
// both of a number and writes act. Pairs of the next expert in a tile are multiplied, too, and not
// written. Used by sorted_pairs_sm90.cu and sorted_codes_sm90.cu. Thread rule: device code; maps on
// the host.
#pragma once

#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention/kv_tensor_map.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/rows/silu.cuh"
#include "ops/cuda/shared_copy.cuh"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda::sorted {

inline constexpr int kConsumers = 2;
inline constexpr int kGroupRows = kExpertTileRows / kConsumers;
inline constexpr int kTileColumns = 128;  // rows of the weight
inline constexpr int kThreads = 128 * kConsumers + 32;
inline constexpr int kPanelBytes = 128 * kSwizzleRowBytes;
inline constexpr int kHalfPanelBytes = kPanelBytes / 2;
inline constexpr int kStepHalves = kSwizzleRowBytes / 2;  // a panel's columns, as 16-bit numbers

template <int kStages>
struct alignas(1024) Shared {
  std::byte pairs[kStages][kPanelBytes];
  std::byte weights[kStages][kPanelBytes];
  uint64_t full[kStages], empty[kStages];
};

struct ProductCall {
  const int32_t* begins;       // [num_experts + 1], of the range's experts
  const int32_t* first_tiles;  // likewise
  int32_t num_experts;         // of the range
  int32_t num_steps;           // panels of a row of both factors
  int32_t num_parts;           // tiles side by side: of the result's columns
  int32_t num_columns;         // of the result: act's or hidden
  uint16_t* act;               // the result with a gate: bf16 [pairs][num_columns]
  float* products;             // and without
};

// Pairs [begin, end), all of one expert, and which part of the result's columns.
struct Tile {
  int32_t expert;  // of the range
  int32_t begin;
  int32_t end;
  int32_t part;
};

// Tiles of the range. The parts of the same pairs follow each other.
__device__ inline int32_t num_tiles(const ProductCall& call) {
  return (call.first_tiles[call.num_experts] - call.first_tiles[0]) * call.num_parts;
}

// Its expert is the last one whose first tile is not after it; experts without pairs have none.
// REQUIRES: all threads of a warp ask for the same.
__device__ inline Tile tile_of(const ProductCall& call, int32_t index) {
  const int32_t tile = call.first_tiles[0] + index / call.num_parts;
  const int32_t lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  int32_t num_not_after = 0;
  for (int32_t first = 0; first < call.num_experts; first += kWarpThreads) {
    const int32_t expert = first + lane;
    const bool is_not_after = expert < call.num_experts && call.first_tiles[expert] <= tile;
    num_not_after += __popc(__ballot_sync(kFullWarp, is_not_after));
  }
  const int32_t expert = num_not_after - 1;
  const int32_t begin = call.begins[expert] + (tile - call.first_tiles[expert]) * kExpertTileRows;
  return {.expert = expert,
          .begin = begin,
          .end = min(call.begins[expert + 1], begin + kExpertTileRows),
          .part = index % call.num_parts};
}

// Calls `fn(tile, first_step)` for the CTA's tiles; steps are counted over all of them.
template <typename Fn>
__device__ inline void for_each_tile(const ProductCall& call, Fn fn) {
  const int32_t count = num_tiles(call);
  int first_step = 0;
  for (auto index = static_cast<int32_t>(blockIdx.x); index < count;
       index += static_cast<int32_t>(gridDim.x), first_step += call.num_steps) {
    fn(tile_of(call, index), first_step);
  }
}

template <bool kGated, int kStages>
__device__ inline void produce(const ProductCall& call, const CUtensorMap* pairs,
                               const CUtensorMap* weights, const Tile& tile, int first_step,
                               Shared<kStages>& shared) {
  for (int i = 0; i < call.num_steps; ++i) {
    const int step = first_step + i;
    const int stage = step % kStages;
    const uint32_t full = shared_address(&shared.full[stage]);
    barrier_wait(shared_address(&shared.empty[stage]), (step / kStages & 1) ^ 1);
    barrier_arrive_expecting(full, 2 * kPanelBytes);
    const int column = i * kStepHalves;
    copy_box(shared_address(shared.pairs[stage]), pairs, full, column, tile.begin, 0, 0);
    const uint32_t to = shared_address(shared.weights[stage]);
    if constexpr (kGated) {
      const int row = tile.part * (kTileColumns / 2);
      copy_box(to, weights, full, column, row, 0, tile.expert);
      copy_box(to + kHalfPanelBytes, weights, full, column, row, 1, tile.expert);
    } else {
      const int row = tile.part * kTileColumns;
      copy_box(to, weights, full, column, row, 0, tile.expert);
      copy_box(to + kHalfPanelBytes, weights, full, column, row + kTileColumns / 2, 0, tile.expert);
    }
  }
}

// Descriptors of the factors of a step: the pairs of a warpgroup, and the tile's weight rows.
struct StepFactors {
  uint64_t pairs;
  uint64_t weights;
};

// The producer warp's work: one thread of it copies.
template <bool kGated, int kStages>
__device__ inline void produce_all(const ProductCall& call, const CUtensorMap* pairs,
                                   const CUtensorMap* weights, Shared<kStages>& shared) {
  for_each_tile(call, [&](const Tile& tile, int first_step) {
    if (threadIdx.x % kWarpThreads == 0) {
      produce<kGated>(call, pairs, weights, tile, first_step, shared);
    }
    __syncwarp();
  });
}

// The caller's warp has read all that it needs of a step.
template <int kStages>
__device__ inline void release_step(Shared<kStages>& shared, int step) {
  if (threadIdx.x % kWarpThreads == 0) {
    barrier_arrive(shared_address(&shared.empty[step % kStages]));
  }
}

// Waits until the copies of a step are in shared memory.
template <int kStages>
__device__ inline StepFactors await_step(Shared<kStages>& shared, int step, int group) {
  const int stage = step % kStages;
  barrier_wait(shared_address(&shared.full[stage]), step / kStages & 1);
  const uint32_t pairs =
      shared_address(shared.pairs[stage]) + group * kGroupRows * kSwizzleRowBytes;
  return {
      .pairs = matrix_descriptor(pairs, 16, kSwizzleUnitBytes),
      .weights = matrix_descriptor(shared_address(shared.weights[stage]), 16, kSwizzleUnitBytes)};
}

__device__ inline float rounded(float value) { return bf16_to_float(float_to_bf16(value)); }

// Two neighbours of a row of act, from their gates and ups.
__device__ inline void store_gated(const ProductCall& call, uint16_t* row, int column,
                                   const float* gates, const float* ups) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (column + i >= call.num_columns) return;
    row[column + i] = float_to_bf16(silu_times(rounded(gates[i]), rounded(ups[i])));
  }
}

// A thread has, of 8 columns, two neighbours in a row and two in the row 8 further.
template <bool kGated>
__device__ inline void store(const ProductCall& call, const Tile& tile, int group,
                             const float (&sums)[kTileColumns / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % kWarpThreads;
  const int first = tile.begin + group * kGroupRows + thread / kWarpThreads * 16 + lane / 4;
  constexpr int kColumns = kGated ? kTileColumns / 2 : kTileColumns;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t place = first + 8 * half;
    if (place >= tile.end) continue;
#pragma unroll
    for (int eight = 0; eight < kColumns / 8; ++eight) {
      const int column = tile.part * kColumns + 8 * eight + lane % 4 * 2;
      const float* own = sums + 4 * eight + 2 * half;
      if constexpr (kGated) {
        store_gated(call, call.act + place * call.num_columns, column, own, own + kTileColumns / 4);
      } else if (column < call.num_columns) {
        // num_columns is even, and so is column.
        *reinterpret_cast<float2*>(call.products + place * call.num_columns + column) = {own[0],
                                                                                         own[1]};
      }
    }
  }
}

// Makes the barriers ready, for all threads of the CTA.
template <int kStages>
__device__ inline void begin_pipeline(Shared<kStages>& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 4 * kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
}

template <int kStages>
__device__ inline Shared<kStages>& shared_of(std::byte* bytes) {
  return *reinterpret_cast<Shared<kStages>*>(bytes + (1024 - shared_address(bytes) % 1024) % 1024);
}

// Weights as [expert][half][row][column]; without a gate one half.
inline CUtensorMap weight_map(const ExpertRange& range, int64_t rows, int64_t halves,
                              int64_t columns) {
  return make_tensor_map(range.weights, {columns, rows, halves, range.count},
                         {columns * 2, rows * columns * 2, range.stride * 2},
                         {kStepHalves, 64, 1, 1});
}

inline CUtensorMap pair_map(const uint16_t* rows, int64_t num_pairs, int64_t columns) {
  const int64_t row_bytes = columns * 2;
  return make_tensor_map(rows, {columns, num_pairs, 1, 1},
                         {row_bytes, num_pairs * row_bytes, num_pairs * row_bytes},
                         {kStepHalves, kExpertTileRows, 1, 1});
}

template <bool kGated>
constexpr int32_t count_parts(int32_t num_columns) {
  constexpr int kColumns = kGated ? kTileColumns / 2 : kTileColumns;
  return (num_columns + kColumns - 1) / kColumns;
}

// kCtas: of a multiprocessor.
template <int kCtas, int kStages, typename Call>
void launch(CudaStream& stream, void (*kernel)(Call, CUtensorMap, CUtensorMap), const Call& call,
            const ProductCall& product, int32_t num_pairs, const CUtensorMap& pairs,
            const CUtensorMap& weights) {
  constexpr int kSharedBytes = sizeof(Shared<kStages>) + 1024;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute");
  // Each expert with pairs may waste a part of its last tile.
  const int most = num_pairs / kExpertTileRows + std::min(product.num_experts, num_pairs);
  const int num_ctas = std::min(most * product.num_parts,
                                kCtas * stream.cuda_device().properties().multiProcessorCount);
  kernel<<<num_ctas, kThreads, kSharedBytes, stream.handle()>>>(call, pairs, weights);
  check_cuda(cudaGetLastError(), "launch of the products of experts");
}

}  // namespace sluice::cuda::sorted
