// What the kernels of products of pairs sorted by expert share: tiles, copies and results.
//
// A tile has pairs of one expert and 128 rows of its weight; a producer warp brings a panel of 128
// bytes of the columns of both factors at a time through the copy engine. A call has one of two
// forms, by its numbers of pairs and experts. ManyPairs: a tile has 128 pairs, and each of two
// consumer warpgroups multiplies 64 of them by all weight rows. FewPairs, as decode of a batch has
// for each expert: a tile has 32, and a warpgroup multiplies 64 weight rows by all of them, a
// quarter of the products for the same weights. A CTA computes one tile after the other: while the
// consumers write one, the producer brings the next, whose few panels would take as long to come as
// to be multiplied. Where gate and up are multiplied, 8 rows are gate's and the next 8 the same of
// up, so that a thread has both of a number and writes act. Pairs of the next expert in a tile are
// multiplied, too, and not written.
// Used by sorted_pairs_sm90.cu and sorted_codes_sm90.cu. Thread rule: device code; maps on the
// host.
#pragma once

#include <algorithm>
#include <type_traits>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/attention/kv_tensor_map.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/expert_tiles.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/rows/silu.cuh"
#include "ops/cuda/shared_copy.cuh"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda::sorted {

inline constexpr int kConsumers = 2;
inline constexpr int kGroupRows = 64;     // of a product: what a warpgroup has of the tile
inline constexpr int kTileColumns = 128;  // rows of the weight
inline constexpr int kThreads = 128 * kConsumers + 32;
inline constexpr int kPanelBytes = 128 * kSwizzleRowBytes;
inline constexpr int kGroupBytes = kGroupRows * kSwizzleRowBytes;
inline constexpr int kStepHalves = kSwizzleRowBytes / 2;  // a panel's columns, as 16-bit numbers

template <typename Form, int kStages>
struct alignas(1024) Shared {
  std::byte pairs[kStages][Form::kTilePairs * kSwizzleRowBytes];
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

// Pairs of an expert of the range, and which part of the result's columns.
struct Tile : ExpertTile {
  int32_t part;
};

// How a tile's sums lie in registers. A warpgroup's product has kGroupRows rows, of one factor, and
// as columns all of the other: sum i of a thread lies in row `row(i)` and column `column(i)`.
struct SumPlaces {
  int first_row;
  int first_column;

  __device__ static SumPlaces of(int group) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int lane = thread % kWarpThreads;
    return {.first_row = group * kGroupRows + thread / kWarpThreads * 16 + lane / 4,
            .first_column = lane % 4 * 2};
  }
  __device__ int row(int i) const { return first_row + 8 * (i / 2 % 2); }
  __device__ int column(int i) const { return first_column + 8 * (i / 4) + i % 2; }
};

// Rows are pairs, columns are weight rows. In both forms `pair` is that of sum i within the tile,
// and `result` the column of its result, after `part`'s first one: of a weight row, or of gate and
// up.
struct ManyPairs {
  static constexpr int kTilePairs = kExpertTileRows;
  static constexpr int kSums = kTileColumns / 2;
  static constexpr int kThreadPairs = 2;  // of a thread's sums
  static constexpr int kToUp = 4;         // sums from a gate's to its up's

  // Whether sum i is of an up row, which of the thread's pairs it is of, and the inverse of that:
  // the first sum of a pair. All are constants once loops over sums are unrolled.
  __device__ static constexpr bool is_up(int i) { return i / 4 % 2 == 1; }
  __device__ static constexpr int own_pair(int i) { return i / 2 % 2; }
  __device__ static constexpr int sum_of(int own_pair) { return 2 * own_pair; }
  __device__ static int pair(SumPlaces at, int i) { return at.row(i); }
  template <bool kGated>
  __device__ static int result(SumPlaces at, int i) {
    return kGated ? at.first_column + 8 * (i / 8) + i % 2 : at.column(i);
  }
};

// Rows are weight rows, columns are pairs.
struct FewPairs {
  static constexpr int kTilePairs = kFewTileRows;
  static constexpr int kSums = kTilePairs / 2;
  static constexpr int kThreadPairs = kTilePairs / 4;
  static constexpr int kToUp = 2;

  __device__ static constexpr bool is_up(int i) { return i / 2 % 2 == 1; }
  __device__ static constexpr int own_pair(int i) { return i / 4 * 2 + i % 2; }
  __device__ static constexpr int sum_of(int own_pair) { return own_pair / 2 * 4 + own_pair % 2; }
  __device__ static int pair(SumPlaces at, int i) { return at.column(i); }
  template <bool kGated>
  __device__ static int result(SumPlaces at, int i) {
    return kGated ? at.first_row / 16 * 8 + at.first_row % 8 : at.row(i);
  }
};

// The first column of the result that a tile gives.
template <bool kGated>
__device__ inline int first_result(const Tile& tile) {
  return tile.part * (kGated ? kTileColumns / 2 : kTileColumns);
}

// Tiles of the range. The parts of the same pairs follow each other.
__device__ inline int32_t num_tiles(const ProductCall& call) {
  return (call.first_tiles[call.num_experts] - call.first_tiles[0]) * call.num_parts;
}

template <typename Form>
__device__ inline Tile tile_of(const ProductCall& call, int32_t index) {
  const ExpertTile tile =
      expert_tile(call.begins, call.first_tiles, call.num_experts,
                  call.first_tiles[0] + index / call.num_parts, Form::kTilePairs);
  return {tile, index % call.num_parts};
}

// Calls `fn(tile, first_step)` for the CTA's tiles; steps are counted over all of them.
template <typename Form, typename Fn>
__device__ inline void for_each_tile(const ProductCall& call, Fn fn) {
  const int32_t count = num_tiles(call);
  int first_step = 0;
  for (auto index = static_cast<int32_t>(blockIdx.x); index < count;
       index += static_cast<int32_t>(gridDim.x), first_step += call.num_steps) {
    fn(tile_of<Form>(call, index), first_step);
  }
}

template <bool kGated, typename Form, int kStages>
__device__ inline void produce(const ProductCall& call, const CUtensorMap* pairs,
                               const CUtensorMap* weights, const Tile& tile, int first_step,
                               Shared<Form, kStages>& shared) {
  constexpr int kBoxRows = kGated ? 64 : 128;  // of the result's columns
  for (int i = 0; i < call.num_steps; ++i) {
    const int step = first_step + i;
    const int stage = step % kStages;
    const uint32_t full = shared_address(&shared.full[stage]);
    barrier_wait(shared_address(&shared.empty[stage]), (step / kStages & 1) ^ 1);
    barrier_arrive_expecting(full, kPanelBytes + sizeof(shared.pairs[0]));
    const int column = i * kStepHalves;
    copy_box(shared_address(shared.pairs[stage]), pairs, full, column, tile.begin, 0, 0);
    copy_box(shared_address(shared.weights[stage]), weights, full, column, 0, 0,
             tile.part * (kBoxRows / 8), tile.expert);
  }
}

// Descriptors of the factors of a warpgroup's product of a step: 64 rows of one, all of the other.
struct StepFactors {
  uint64_t rows;
  uint64_t columns;
};

// The producer warp's work: one thread of it copies.
template <bool kGated, typename Form, int kStages>
__device__ inline void produce_all(const ProductCall& call, const CUtensorMap* pairs,
                                   const CUtensorMap* weights, Shared<Form, kStages>& shared) {
  for_each_tile<Form>(call, [&](const Tile& tile, int first_step) {
    if (threadIdx.x % kWarpThreads == 0) {
      produce<kGated>(call, pairs, weights, tile, first_step, shared);
    }
    __syncwarp();
  });
}

// The caller's warp has read all that it needs of a step.
template <typename Form, int kStages>
__device__ inline void release_step(Shared<Form, kStages>& shared, int step) {
  if (threadIdx.x % kWarpThreads == 0) {
    barrier_arrive(shared_address(&shared.empty[step % kStages]));
  }
}

// Waits until the copies of a step are in shared memory.
template <typename Form, int kStages>
__device__ inline StepFactors await_step(Shared<Form, kStages>& shared, int step, int group) {
  const int stage = step % kStages;
  barrier_wait(shared_address(&shared.full[stage]), step / kStages & 1);
  const uint64_t pairs =
      matrix_descriptor(shared_address(shared.pairs[stage]), 16, kSwizzleUnitBytes);
  const uint64_t weights =
      matrix_descriptor(shared_address(shared.weights[stage]), 16, kSwizzleUnitBytes);
  const int own_bytes = group * kGroupBytes;
  if constexpr (std::is_same_v<Form, FewPairs>) {
    return {.rows = advanced(weights, own_bytes), .columns = pairs};
  } else {
    return {.rows = advanced(pairs, own_bytes), .columns = weights};
  }
}

__device__ inline float rounded(float value) { return bf16_to_float(float_to_bf16(value)); }

// Writes a thread's sums: act of each gate with its up, or products.
template <bool kGated, typename Form>
__device__ inline void store(const ProductCall& call, const Tile& tile, int group,
                             const float (&sums)[Form::kSums]) {
  // Two neighbours of a row at once; num_columns is even, and so is the first of them.
  constexpr int kAtOnce = !kGated && std::is_same_v<Form, ManyPairs> ? 2 : 1;
  const SumPlaces at = SumPlaces::of(group);
#pragma unroll
  for (int pair = 0; pair < Form::kThreadPairs; ++pair) {
    const int64_t place = tile.begin + Form::pair(at, Form::sum_of(pair));
    if (place >= tile.end) continue;
    const int64_t row = place * call.num_columns;
#pragma unroll
    for (int i = 0; i < Form::kSums; i += kAtOnce) {
      if (Form::own_pair(i) != pair || (kGated && Form::is_up(i))) continue;
      const int column = first_result<kGated>(tile) + Form::template result<kGated>(at, i);
      if (column >= call.num_columns) continue;
      if constexpr (kGated) {
        const float up = rounded(sums[i + Form::kToUp]);
        call.act[row + column] = float_to_bf16(silu_times(rounded(sums[i]), up));
      } else if constexpr (kAtOnce == 2) {
        *reinterpret_cast<float2*>(call.products + row + column) = {sums[i], sums[i + 1]};
      } else {
        call.products[row + column] = sums[i];
      }
    }
  }
}

// Makes the barriers ready, for all threads of the CTA, and waits for what earlier kernels write.
template <typename Form, int kStages>
__device__ inline void begin_pipeline(Shared<Form, kStages>& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 4 * kConsumers);
    }
    barrier_init_fence();
  }
  // Both factors and the tiles' borders are read after this: only weights exist before.
  let_next_kernel_start();
  wait_for_earlier_work();
  __syncthreads();
}

template <typename Form, int kStages>
__device__ inline Shared<Form, kStages>& shared_of(std::byte* bytes) {
  return *reinterpret_cast<Shared<Form, kStages>*>(first_unit(bytes));
}

// Weights as [expert][8 rows][half][row][column]: a box has 8 rows of gate, the same of up, and so
// on; without a gate there is one half. REQUIRES: rows of a half are a multiple of 8.
inline CUtensorMap weight_map(const ExpertRange& range, int64_t rows, int32_t halves,
                              int64_t columns) {
  const int64_t row_bytes = columns * 2;
  return make_tensor_map<5>(range.weights, {columns, 8, halves, rows / 8, range.count},
                            {row_bytes, rows * row_bytes, 8 * row_bytes, range.stride * 2},
                            {kStepHalves, 8, halves, kTileColumns / 8 / halves, 1});
}

inline CUtensorMap pair_map(const uint16_t* rows, int64_t num_pairs, int64_t columns,
                            int32_t tile_pairs) {
  const int64_t row_bytes = columns * 2;
  return make_tensor_map(rows, {columns, num_pairs, 1, 1},
                         {row_bytes, num_pairs * row_bytes, num_pairs * row_bytes},
                         {kStepHalves, tile_pairs, 1, 1});
}

template <bool kGated>
constexpr int32_t count_parts(int32_t num_columns) {
  constexpr int kColumns = kGated ? kTileColumns / 2 : kTileColumns;
  return (num_columns + kColumns - 1) / kColumns;
}

// kCtas: of a multiprocessor.
template <typename Form, int kCtas, int kStages, typename Call>
void launch(CudaStream& stream, void (*kernel)(Call, CUtensorMap, CUtensorMap), const Call& call,
            const ProductCall& product, int32_t num_pairs, const CUtensorMap& pairs,
            const CUtensorMap& weights) {
  constexpr int kSharedBytes = sizeof(Shared<Form, kStages>) + 1024;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute");
  // Each expert with pairs may waste a part of its last tile.
  const int most = num_pairs / Form::kTilePairs + std::min(product.num_experts, num_pairs);
  const int num_ctas = std::min(most * product.num_parts,
                                kCtas * stream.cuda_device().properties().multiProcessorCount);
  launch_early(stream, kernel,
               {.grid = dim3(static_cast<unsigned>(num_ctas)),
                .block = dim3(kThreads),
                .shared_bytes = kSharedBytes},
               call, pairs, weights);
}

}  // namespace sluice::cuda::sorted
