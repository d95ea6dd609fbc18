// Experts of few rows: every pair of row and slot reads the weights of its expert.
//
// Bound: bytes, the weights of the chosen experts; pairs that share one find it in the L2 cache.
// Tile: a warp has one column of the result, and lanes take 8 of the summed columns at a time, so
// that a row of weights is read in whole lines. No sorting, no atomics: sums of a row do not depend
// on other rows. Thread rule: enqueue only.
#include <algorithm>

#include "ops/cuda/common.cuh"
#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/experts/write_sum.cuh"
#include "ops/cuda/rows/silu.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kStep = kWarpThreads * 8;  // columns of a warp at a time

__device__ inline float dot(const Bf16x8& a, const Bf16x8& b, float sum) {
  float left[8], right[8];
  unpack(a, left);
  unpack(b, right);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(left[i], right[i], sum);
  return sum;
}

__device__ inline Bf16x8 load(const uint16_t* from) {
  return *reinterpret_cast<const Bf16x8*>(from);
}

// grid: (columns of act / kWarps, pairs). act lies by pair.
__global__ void __launch_bounds__(kWarps* kWarpThreads) gate_each_pair(ExpertCall call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int pair = static_cast<int>(blockIdx.y);
  let_next_kernel_start();
  wait_for_earlier_work();
  if (column >= call.intermediate) return;
  const uint16_t* weights = call.gate_up + call.experts[pair] * call.gate_up_stride;
  const uint16_t* gate_row = weights + int64_t{column} * call.hidden;
  const uint16_t* up_row = gate_row + int64_t{call.intermediate} * call.hidden;
  const uint16_t* x = call.x + int64_t{pair / call.num_slots} * call.hidden;
  float gate = 0.0f;
  float up = 0.0f;
#pragma unroll 4
  for (int k = lane * 8; k < call.hidden; k += kStep) {
    const Bf16x8 of_x = load(x + k);
    gate = dot(of_x, load(gate_row + k), gate);
    up = dot(of_x, load(up_row + k), up);
  }
  gate = bf16_to_float(float_to_bf16(group_sum<kWarpThreads>(gate)));
  up = bf16_to_float(float_to_bf16(group_sum<kWarpThreads>(up)));
  if (lane == 0) {
    call.act[int64_t{pair} * call.intermediate + column] = float_to_bf16(silu_times(gate, up));
  }
}

// grid: (columns of out / kWarps, rows). The slots of a row are added in their order.
__global__ void __launch_bounds__(kWarps* kWarpThreads) sum_each_row(ExpertCall call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.y);
  let_next_kernel_start();
  wait_for_earlier_work();
  if (column >= call.hidden) return;
  float sum = 0.0f;
  for (int slot = 0; slot < call.num_slots; ++slot) {
    const int pair = row * call.num_slots + slot;
    const uint16_t* down_row =
        call.down + call.experts[pair] * call.down_stride + int64_t{column} * call.intermediate;
    const uint16_t* act = call.act + int64_t{pair} * call.intermediate;
    float product = 0.0f;
#pragma unroll 4
    for (int k = lane * 8; k < call.intermediate; k += kStep) {
      product = dot(load(act + k), load(down_row + k), product);
    }
    sum = __fmaf_rn(call.shares[pair], product, sum);
  }
  sum = group_sum<kWarpThreads>(sum);
  if (lane == 0) write_sum(call, row, column, sum);
}

unsigned warps_for(int32_t columns) {
  return static_cast<unsigned>((columns + kWarps - 1) / kWarps);
}

}  // namespace

void run_each_pair(CudaStream& stream, const ExpertCall& call) {
  constexpr int32_t kMaxGridRows = 32768;  // of the 65535 that a grid may have
  for (int32_t begin = 0; begin < call.num_rows;) {
    const int32_t count = std::min(call.num_rows - begin, kMaxGridRows / call.num_slots);
    ExpertCall part = call;
    part.num_rows = count;
    part.x += int64_t{begin} * call.hidden;
    part.experts += int64_t{begin} * call.num_slots;
    part.shares += int64_t{begin} * call.num_slots;
    part.out += int64_t{begin} * call.hidden;
    if (call.shared != nullptr) {
      part.shared += int64_t{begin} * call.hidden;
      part.shared_gate += begin;
    }
    const dim3 block(kWarps * kWarpThreads);
    launch_early(
        stream, gate_each_pair,
        {.grid = dim3(warps_for(call.intermediate), static_cast<unsigned>(count * call.num_slots)),
         .block = block},
        part);
    launch_early(
        stream, sum_each_row,
        {.grid = dim3(warps_for(call.hidden), static_cast<unsigned>(count)), .block = block}, part);
    begin += count;
  }
}

}  // namespace sluice::cuda
