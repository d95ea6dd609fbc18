// Pairs of row and slot sorted by expert, and the sums of their products.
//
// A CTA has one expert and reads the choices of all pairs twice: their number is at most some
// 65,000, they lie in the L2 cache, and nothing has to be agreed between CTAs. Stable, without
// atomics. Thread rule: enqueue only.
#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/experts/write_sum.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpThreads;

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

// grid: places. rows[place] = x of the pair's row.
__global__ void __launch_bounds__(256) gather_rows(ExpertCall call) {
  const int64_t place = blockIdx.x;
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
  const auto num_experts = static_cast<unsigned>(call.num_experts);
  cudaStream_t handle = stream.handle();
  count_pairs<<<num_experts, kThreads, 0, handle>>>(call);
  scan_counts<<<1, kThreads, 0, handle>>>(call, tile_rows);
  place_pairs<<<num_experts, kThreads, 0, handle>>>(call);
  check_cuda(cudaGetLastError(), "launch of the sort of experts");
}

void gather_pairs(CudaStream& stream, const ExpertCall& call) {
  gather_rows<<<static_cast<unsigned>(call.num_pairs()), 256, 0, stream.handle()>>>(call);
  check_cuda(cudaGetLastError(), "launch of the gather of experts' rows");
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
    sum_products<<<grid, 256, 0, stream.handle()>>>(part);
  }
  check_cuda(cudaGetLastError(), "launch of the sums of experts");
}

}  // namespace sluice::cuda
