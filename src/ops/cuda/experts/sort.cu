// Pairs of row and slot sorted by expert, and the sums of their products.
//
// A CTA has one expert and reads the choices of all pairs twice: their number is at most some
// 65,000, they lie in the L2 cache, and nothing has to be agreed between CTAs. Few pairs, as in
// decode of a batch, are sorted by one CTA: between three kernels a step would wait twice. Stable,
// without atomics. Thread rule: enqueue only.
#include <algorithm>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/experts/write_sum.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kFewPairs = 2048;   // that one CTA sorts at most
constexpr int kFewCounts = 8192;  // of pairs of an expert that it holds

// For each 32 pairs one of every expert.
__host__ __device__ inline int32_t few_counts(const ExpertCall& call) {
  return (call.num_rows * call.num_slots + kWarpThreads - 1) / kWarpThreads * call.num_experts;
}

// The sum over the CTA's threads, in all of them.
__device__ inline int32_t block_sum(int32_t value, int32_t* of_warps) {
  value = __reduce_add_sync(kFullWarp, value);
  __syncthreads();
  if (threadIdx.x % kWarpThreads == 0) of_warps[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  value = of_warps[threadIdx.x % kWarpThreads];
  return __reduce_add_sync(kFullWarp, value);
}

// grid: experts. The number of pairs of each, in begins[expert + 1].
__global__ void __launch_bounds__(kThreads) count_pairs(ExpertCall call) {
  __shared__ int32_t of_warps[kWarps];
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const int32_t num_pairs = call.num_rows * call.num_slots;
  let_next_kernel_start();
  wait_for_earlier_work();
  int32_t count = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_pairs; i += kThreads) {
    count += call.experts[i] == expert ? 1 : 0;
  }
  count = block_sum(count, of_warps);
  if (threadIdx.x == 0) call.begins[expert + 1] = count;
}

// One CTA: from counts to the first place and the first tile of each expert. num_experts is at
// most kThreads.
__global__ void __launch_bounds__(kThreads) scan_counts(ExpertCall call, int32_t tile_rows) {
  __shared__ int32_t counts[kThreads];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  let_next_kernel_start();
  wait_for_earlier_work();
  counts[thread] = thread < call.num_experts ? call.begins[thread + 1] : 0;
  __syncthreads();
  if (thread > call.num_experts) return;
  int32_t place = 0;
  int32_t tile = 0;
  for (int32_t expert = 0; expert < thread; ++expert) {
    place += counts[expert];
    tile += (counts[expert] + tile_rows - 1) / tile_rows;
  }
  call.begins[thread] = place;
  call.first_tiles[thread] = tile;
}

// grid: experts. Places of its pairs, in their order.
__global__ void __launch_bounds__(kThreads) place_pairs(ExpertCall call) {
  __shared__ int32_t of_warps[kWarps];
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int32_t num_pairs = call.num_rows * call.num_slots;
  let_next_kernel_start();
  wait_for_earlier_work();
  int32_t place = call.begins[expert];
  for (int32_t begin = 0; begin < num_pairs; begin += kThreads) {
    const int32_t pair = begin + static_cast<int32_t>(threadIdx.x);
    const bool is_own = pair < num_pairs && call.experts[pair] == expert;
    const uint32_t own = __ballot_sync(kFullWarp, is_own);
    __syncthreads();
    if (lane == 0) of_warps[warp] = __popc(own);
    __syncthreads();
    const int32_t of_warp = of_warps[lane];
    const int32_t before = __reduce_add_sync(kFullWarp, lane < warp ? of_warp : 0);
    if (is_own) {
      const int32_t own_place = place + before + __popc(own & ((1u << lane) - 1u));
      call.places[pair] = own_place;
      call.pairs[own_place] = pair;
    }
    place += __reduce_add_sync(kFullWarp, of_warp);
  }
}

// The sum over the threads of the CTA before this one. All threads call it.
__device__ inline int32_t sum_before(int32_t value, int32_t* of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  int32_t sum = value;  // up to this lane
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const int32_t other = __shfl_up_sync(kFullWarp, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == kWarpThreads - 1) of_warps[warp] = sum;
  __syncthreads();
  const int32_t before = __reduce_add_sync(kFullWarp, lane < warp ? of_warps[lane] : 0);
  return before + sum - value;
}

// One CTA, all of the sort. A warp ranks 32 neighbouring pairs among those of the same expert; then
// a thread an expert adds up its pairs of all warps.
__global__ void __launch_bounds__(kThreads) sort_few(ExpertCall call, int32_t tile_rows) {
  __shared__ uint16_t before[kFewCounts];  // [32 pairs][expert]: how many there are, then in those
                                           // before
  __shared__ int32_t begins[kThreads];
  __shared__ int32_t of_warps[kWarps];
  constexpr int kEach = kFewPairs / kThreads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t num_pairs = call.num_rows * call.num_slots;
  const int32_t num_counts = few_counts(call);
  for (int32_t i = thread; i < num_counts; i += kThreads) before[i] = 0;
  // An expert that is not there is that of no pair, as in the kernels above.
  let_next_kernel_start();
  wait_for_earlier_work();
  __syncthreads();
  int32_t experts[kEach], counts[kEach];  // the thread's pairs; where their warp's count lies
  uint32_t ranks[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t pair = thread + i * kThreads;
    experts[i] = pair < num_pairs ? call.experts[pair] : -1;
    const bool exists = experts[i] >= 0 && experts[i] < call.num_experts;
    const uint32_t same = __match_any_sync(kFullWarp, experts[i]);
    ranks[i] = __popc(same & ((1u << thread % kWarpThreads) - 1u));
    counts[i] = exists ? pair / kWarpThreads * call.num_experts + experts[i] : -1;
    if (exists && ranks[i] == 0) before[counts[i]] = static_cast<uint16_t>(__popc(same));
  }
  __syncthreads();
  // The thread's expert: from the counts of each 32 pairs to how many come before them.
  int32_t of_expert = 0;
  if (thread < call.num_experts) {
#pragma unroll 4
    for (int32_t i = thread; i < num_counts; i += call.num_experts) {
      const int32_t count = before[i];
      before[i] = static_cast<uint16_t>(of_expert);
      of_expert += count;
    }
  }
  begins[thread] = sum_before(of_expert, of_warps);
  // Also the last one's end: threads after the experts add nothing, so theirs is the sum of all.
  const int32_t first_tile = sum_before((of_expert + tile_rows - 1) / tile_rows, of_warps);
  if (thread <= call.num_experts) {
    call.begins[thread] = begins[thread];
    call.first_tiles[thread] = first_tile;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (counts[i] < 0) continue;
    const int32_t pair = thread + i * kThreads;
    const int32_t place = begins[experts[i]] + before[counts[i]] + static_cast<int32_t>(ranks[i]);
    call.places[pair] = place;
    call.pairs[place] = pair;
  }
}

// grid: places. rows[place] = x of the pair's row.
__global__ void __launch_bounds__(256) gather_rows(ExpertCall call) {
  const int64_t place = blockIdx.x;
  let_next_kernel_start();
  wait_for_earlier_work();
  const int64_t row = call.pairs[place] / call.num_slots;
  const auto* from = reinterpret_cast<const Bf16x8*>(call.x + row * call.hidden);
  auto* to = reinterpret_cast<Bf16x8*>(call.rows + place * call.hidden);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < call.hidden / 8; i += 256) {
    to[i] = from[i];
  }
}

// grid: (parts of 256 columns, rows); a thread has one column.
__global__ void __launch_bounds__(256) sum_products(ExpertCall call) {
  const int32_t column = static_cast<int32_t>(blockIdx.x) * 256 + static_cast<int32_t>(threadIdx.x);
  const int64_t row = blockIdx.y;
  let_next_kernel_start();
  wait_for_earlier_work();
  if (column >= call.hidden) return;
  float sum = 0.0f;
  for (int32_t slot = 0; slot < call.num_slots; ++slot) {
    const int64_t pair = row * call.num_slots + slot;
    sum = __fmaf_rn(call.shares[pair],
                    call.products[int64_t{call.places[pair]} * call.hidden + column], sum);
  }
  write_sum(call, row, column, sum);
}

}  // namespace

void sort_pairs(CudaStream& stream, const ExpertCall& call, int32_t tile_rows) {
  const LaunchShape one = {.grid = dim3(1), .block = dim3(kThreads)};
  if (call.num_pairs() <= kFewPairs && few_counts(call) <= kFewCounts &&
      call.num_experts < kThreads) {
    return launch_early(stream, sort_few, one, call, tile_rows);
  }
  const LaunchShape each = {.grid = dim3(static_cast<unsigned>(call.num_experts)),
                            .block = dim3(kThreads)};
  launch_early(stream, count_pairs, each, call);
  launch_early(stream, scan_counts, one, call, tile_rows);
  launch_early(stream, place_pairs, each, call);
}

void gather_pairs(CudaStream& stream, const ExpertCall& call) {
  const dim3 grid(static_cast<unsigned>(call.num_pairs()));
  launch_early(stream, gather_rows, {.grid = grid, .block = dim3(256)}, call);
}

void sum_slots(CudaStream& stream, const ExpertCall& call) {
  constexpr int32_t kMaxRows = 65535;  // of a grid
  const auto num_parts = static_cast<unsigned>((call.hidden + 255) / 256);
  for (int32_t begin = 0; begin < call.num_rows; begin += kMaxRows) {
    ExpertCall part = call;
    part.num_rows = std::min(call.num_rows - begin, kMaxRows);
    part.shares += int64_t{begin} * call.num_slots;
    part.places += int64_t{begin} * call.num_slots;
    part.out += int64_t{begin} * call.hidden;
    if (call.shared != nullptr) {
      part.shared += int64_t{begin} * call.hidden;
      part.shared_gate += begin;
    }
    const dim3 grid(num_parts, static_cast<unsigned>(part.num_rows));
    launch_early(stream, sum_products, {.grid = grid, .block = dim3(256)}, part);
  }
}

}  // namespace sluice::cuda
