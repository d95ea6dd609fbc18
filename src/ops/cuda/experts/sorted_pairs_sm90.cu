// Products of pairs sorted by expert, for Hopper.
//
// Bound: tensor-core FLOP/s with many pairs an expert, the experts' bytes with few. Tile: a CTA has
// 128 pairs of one expert and 128 rows of its weight, 64 pairs for each of two consumer
// warpgroups; a producer warp brings 64 columns of both factors at a time through the copy engine,
// three stages deep, and two CTAs share a multiprocessor. Where gate and up are multiplied, 64 rows
// are gate's and 64 the same of up, so that a thread has both of a number and writes act. Pairs of
// the next expert in a tile are multiplied, too, and not written. Compiled for sm_90a only. Thread
// rule: enqueue only.
#include <array>

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

namespace sluice::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kConsumers = 2;
constexpr int kGroupRows = kExpertTileRows / kConsumers;
constexpr int kTileColumns = 128;  // rows of the weight
constexpr int kStepColumns = 64;   // of the sum: a panel of 128 bytes
constexpr int kThreads = 128 * kConsumers + 32;
constexpr int kPanelBytes = 128 * kSwizzleRowBytes;
constexpr int kHalfPanelBytes = kPanelBytes / 2;

struct alignas(1024) Shared {
  std::byte pairs[kStages][kPanelBytes];
  std::byte weights[kStages][kPanelBytes];
  uint64_t full[kStages], empty[kStages];
};

struct ProductCall {
  const int32_t* begins;       // [num_experts + 1], of the range's experts
  const int32_t* first_tiles;  // likewise
  int32_t num_experts;         // of the range
  int32_t sum_columns;         // of both factors
  int32_t num_columns;         // of the result: act's or hidden
  uint16_t* act;               // the result with a gate: bf16 [pairs][num_columns]
  float* products;             // and without
};

// The CTA's pairs [begin, end), all of one expert, and where its tile begins.
struct Tile {
  int32_t expert;  // of the range
  int32_t begin;
  int32_t end;
};

// The last expert whose first tile is not after `tile`; experts without pairs have none.
__device__ inline Tile tile_of(const ProductCall& call, int32_t tile) {
  int32_t low = 0;
  int32_t high = call.num_experts;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (call.first_tiles[middle] <= tile ? low : high) = middle;
  }
  const int32_t begin = call.begins[low] + (tile - call.first_tiles[low]) * kExpertTileRows;
  return {.expert = low, .begin = begin, .end = min(call.begins[low + 1], begin + kExpertTileRows)};
}

template <bool kGated>
__device__ inline void produce(const ProductCall& call, const CUtensorMap* pairs,
                               const CUtensorMap* weights, const Tile& tile, Shared& shared) {
  const auto part = static_cast<int>(blockIdx.x);
  const int num_steps = (call.sum_columns + kStepColumns - 1) / kStepColumns;
  for (int step = 0; step < num_steps; ++step) {
    const int stage = step % kStages;
    const uint32_t full = shared_address(&shared.full[stage]);
    barrier_wait(shared_address(&shared.empty[stage]), (step / kStages & 1) ^ 1);
    barrier_arrive_expecting(full, 2 * kPanelBytes);
    const int column = step * kStepColumns;
    copy_box(shared_address(shared.pairs[stage]), pairs, full, column, tile.begin, 0, 0);
    const uint32_t to = shared_address(shared.weights[stage]);
    if constexpr (kGated) {
      const int row = part * (kTileColumns / 2);
      copy_box(to, weights, full, column, row, 0, tile.expert);
      copy_box(to + kHalfPanelBytes, weights, full, column, row, 1, tile.expert);
    } else {
      const int row = part * kTileColumns;
      copy_box(to, weights, full, column, row, 0, tile.expert);
      copy_box(to + kHalfPanelBytes, weights, full, column, row + kTileColumns / 2, 0, tile.expert);
    }
  }
}

__device__ inline void multiply(const ProductCall& call, Shared& shared, int group,
                                float (&sums)[kTileColumns / 2]) {
  const int num_steps = (call.sum_columns + kStepColumns - 1) / kStepColumns;
  for (int step = 0; step < num_steps; ++step) {
    const int stage = step % kStages;
    barrier_wait(shared_address(&shared.full[stage]), step / kStages & 1);
    const uint32_t pairs =
        shared_address(shared.pairs[stage]) + group * kGroupRows * kSwizzleRowBytes;
    const uint64_t a = matrix_descriptor(pairs, 16, kSwizzleUnitBytes);
    const uint64_t b =
        matrix_descriptor(shared_address(shared.weights[stage]), 16, kSwizzleUnitBytes);
    pin_registers(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kStepColumns / 16; ++i) {
      wgmma_scores(sums, advanced(a, i * 32), advanced(b, i * 32), step + i > 0);
    }
    wgmma_commit();
    // The products of the step before are done: its stage is free.
    wgmma_wait<1>();
    pin_registers(sums);
    if (step > 0 && threadIdx.x % kWarpThreads == 0) {
      barrier_arrive(shared_address(&shared.empty[(step - 1) % kStages]));
    }
  }
  wgmma_wait<0>();
  pin_registers(sums);
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
      const int column = static_cast<int>(blockIdx.x) * kColumns + 8 * eight + lane % 4 * 2;
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

// grid: (parts of the weight's rows, row tiles: at least as many as the range has).
template <bool kGated>
__global__ void __launch_bounds__(kThreads, 2)
    multiply_sorted(const __grid_constant__ ProductCall call,
                    const __grid_constant__ CUtensorMap pairs,
                    const __grid_constant__ CUtensorMap weights) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes +
                                            (1024 - shared_address(shared_bytes) % 1024) % 1024);
  const int32_t index = call.first_tiles[0] + static_cast<int32_t>(blockIdx.y);
  if (index >= call.first_tiles[call.num_experts]) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), 4 * kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const Tile tile = tile_of(call, index);
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kWarpThreads, 0);
  if (warp == 4 * kConsumers) {
    if (threadIdx.x % kWarpThreads == 0) produce<kGated>(call, &pairs, &weights, tile, shared);
    return;
  }
  float sums[kTileColumns / 2];
  multiply(call, shared, warp / 4, sums);
  store<kGated>(call, tile, warp / 4, sums);
}

// Weights as [expert][half][row][column]; without a gate one half.
CUtensorMap weight_map(const ExpertRange& range, int64_t rows, int64_t halves, int64_t columns) {
  return make_tensor_map(range.weights, {columns, rows, halves, range.count},
                         {columns * 2, rows * columns * 2, range.stride * 2},
                         {kStepColumns, 64, 1, 1});
}

CUtensorMap pair_map(const uint16_t* rows, int64_t num_pairs, int64_t columns) {
  const int64_t row_bytes = columns * 2;
  return make_tensor_map(rows, {columns, num_pairs, 1, 1},
                         {row_bytes, num_pairs * row_bytes, num_pairs * row_bytes},
                         {kStepColumns, kExpertTileRows, 1, 1});
}

template <bool kGated>
void launch(CudaStream& stream, const ExpertCall& call, const ProductCall& product,
            const CUtensorMap& pairs, const CUtensorMap& weights) {
  auto* const kernel = multiply_sorted<kGated>;
  constexpr int kSharedBytes = sizeof(Shared) + 1024;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute");
  constexpr int kColumns = kGated ? kTileColumns / 2 : kTileColumns;
  const int num_parts = (product.num_columns + kColumns - 1) / kColumns;
  // Each expert with pairs may waste a part of its last tile.
  const int num_tiles =
      call.num_pairs() / kExpertTileRows + std::min(product.num_experts, call.num_pairs());
  const dim3 grid(static_cast<unsigned>(num_parts), static_cast<unsigned>(num_tiles));
  kernel<<<grid, kThreads, kSharedBytes, stream.handle()>>>(product, pairs, weights);
  check_cuda(cudaGetLastError(), "launch of the products of experts");
}

}  // namespace

bool multiplies_sorted_pairs(CudaStream& stream) {
  return stream.cuda_device().properties().major == 9;
}

void multiply_sorted_gates(CudaStream& stream, const ExpertCall& call, const ExpertRange& range) {
  const ProductCall product = {.begins = call.begins + range.begin,
                               .first_tiles = call.first_tiles + range.begin,
                               .num_experts = range.count,
                               .sum_columns = call.hidden,
                               .num_columns = call.intermediate,
                               .act = call.act,
                               .products = nullptr};
  launch<true>(stream, call, product, pair_map(call.rows, call.num_pairs(), call.hidden),
               weight_map(range, call.intermediate, 2, call.hidden));
}

void multiply_sorted_downs(CudaStream& stream, const ExpertCall& call, const ExpertRange& range) {
  const ProductCall product = {.begins = call.begins + range.begin,
                               .first_tiles = call.first_tiles + range.begin,
                               .num_experts = range.count,
                               .sum_columns = call.intermediate,
                               .num_columns = call.hidden,
                               .act = nullptr,
                               .products = call.products};
  launch<false>(stream, call, product, pair_map(call.act, call.num_pairs(), call.intermediate),
                weight_map(range, call.hidden, 1, call.intermediate));
}

}  // namespace sluice::cuda
