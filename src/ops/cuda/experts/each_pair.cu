// Experts of few rows: every pair of row and slot reads the weights of its expert.
//
// Bound: bytes, the weights of the chosen experts; pairs that share one find it in the L2 cache.
// Tile: a warp has one column of the gates, or kColumns of one slot's outputs, and lanes take 8 of
// the summed columns at a time, so that a row of weights is read in whole lines. No sorting, no
// atomics: sums of a row do not depend on other rows. Codes are multiplied by coded_pairs.cu, where
// it can. Thread rule: enqueue only.
#include <algorithm>

#include "core/error.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/experts/write_sum.cuh"
#include "ops/cuda/matmul/coded_rows.cuh"
#include "ops/cuda/matmul/state.h"
#include "ops/cuda/rows/silu.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kStep = kWarpThreads * 8;  // columns of a warp at a time
constexpr int kColumns = 4;    // of a warp of sum_each_row: each has loads in flight at once
constexpr int kMaxSlots = 32;  // of route_experts

// What a kernel gets.
template <typename Rows>
struct PairCall {
  ExpertCall call;
  Rows weights;
};

__device__ inline void load(const uint16_t* from, float (&values)[8]) {
  const Bf16x8 eight = *reinterpret_cast<const Bf16x8*>(from);  // one load
  unpack(eight, values);
}

// grid: (columns of act / kWarps, pairs). act lies by pair.
template <typename Rows>
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    gate_each_pair(const __grid_constant__ PairCall<Rows> all) {
  const ExpertCall& call = all.call;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int pair = static_cast<int>(blockIdx.y);
  wait_for_earlier_work();
  let_next_kernel_start();  // not before: coded_pairs.cu then reads what the router has chosen
  if (column >= call.intermediate) return;
  const int expert = call.experts[pair];
  const auto gate_row = all.weights.row(expert, column);
  const auto up_row = all.weights.row(expert, call.intermediate + column);
  const uint16_t* x = call.x + int64_t{pair / call.num_slots} * call.hidden;
  float gate = 0.0f;
  float up = 0.0f;
#pragma unroll 4
  for (int k = lane * 8; k < call.hidden; k += kStep) {
    float of_x[8];
    load(x + k, of_x);
    gate = gate_row.add(k, of_x, gate);
    up = up_row.add(k, of_x, up);
  }
  gate = bf16_to_float(float_to_bf16(group_sum<kWarpThreads>(gate)));
  up = bf16_to_float(float_to_bf16(group_sum<kWarpThreads>(up)));
  if (lane == 0) {
    call.act[int64_t{pair} * call.intermediate + column] = float_to_bf16(silu_times(gate, up));
  }
}

// grid: (columns of out / kColumns, rows). Warps take slots in turn, whose outputs are added in the
// order of the slots.
template <typename Rows>
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    sum_each_row(const __grid_constant__ PairCall<Rows> all) {
  __shared__ float outputs[kMaxSlots][kColumns];
  const ExpertCall& call = all.call;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int first = static_cast<int>(blockIdx.x) * kColumns;
  const int row = static_cast<int>(blockIdx.y);
  let_next_kernel_start();
  wait_for_earlier_work();
  for (int slot = static_cast<int>(threadIdx.x) / kWarpThreads; slot < call.num_slots;
       slot += kWarps) {
    const int pair = row * call.num_slots + slot;
    const int expert = call.experts[pair];
    const uint16_t* act = call.act + int64_t{pair} * call.intermediate;
    float sums[kColumns] = {};
#pragma unroll 2
    for (int k = lane * 8; k < call.intermediate; k += kStep) {
      float of_act[8];
      load(act + k, of_act);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = min(first + i, call.hidden - 1);
        sums[i] = all.weights.row(expert, column).add(k, of_act, sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float sum = group_sum<kWarpThreads>(sums[i]);
      if (lane == 0) outputs[slot][i] = sum;
    }
  }
  __syncthreads();
  const int column = first + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kColumns || column >= call.hidden) return;
  float sum = 0.0f;
  for (int slot = 0; slot < call.num_slots; ++slot) {
    sum = __fmaf_rn(call.shares[row * call.num_slots + slot], outputs[slot][threadIdx.x], sum);
  }
  write_sum(call, row, column, sum);
}

unsigned blocks_for(int32_t columns, int32_t of_block) {
  return static_cast<unsigned>((columns + of_block - 1) / of_block);
}

// Rows [begin, begin + count) of a call.
ExpertCall part_of(const ExpertCall& call, int32_t begin, int32_t count) {
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
  return part;
}

// act of all pairs of a call, whose grid must have room for them.
template <typename Rows>
void launch_gates(CudaStream& stream, const ExpertCall& call) {
  launch_early(
      stream, gate_each_pair<Rows>,
      {.grid = dim3(blocks_for(call.intermediate, kWarps), static_cast<unsigned>(call.num_pairs())),
       .block = dim3(kWarps * kWarpThreads)},
      PairCall<Rows>{call, Rows(call.gate_up)});
}

// out of all rows of a call, from act.
template <typename Rows>
void launch_sums(CudaStream& stream, const ExpertCall& call) {
  launch_early(
      stream, sum_each_row<Rows>,
      {.grid = dim3(blocks_for(call.hidden, kColumns), static_cast<unsigned>(call.num_rows)),
       .block = dim3(kWarps * kWarpThreads)},
      PairCall<Rows>{call, Rows(call.down)});
}

// The two matrices of an expert may have formats of their own: a GGUF file chooses them by tensor.
void multiply_gates(CudaStream& stream, const ExpertCall& call) {
  const WeightFormat format = call.gate_up.first.format;
  if (has_coded_kernel(call, format)) return multiply_coded_gates(stream, call);
  stores_e4m3(format) ? launch_gates<E4m3Rows>(stream, call) : launch_gates<Bf16Rows>(stream, call);
}

void multiply_downs(CudaStream& stream, const ExpertCall& call) {
  const WeightFormat format = call.down.first.format;
  if (has_coded_kernel(call, format)) return multiply_coded_downs(stream, call);
  stores_e4m3(format) ? launch_sums<E4m3Rows>(stream, call) : launch_sums<Bf16Rows>(stream, call);
}

// Rows whose pairs fit a grid, and, where columns have orders, the scratch in which they lie in
// these.
int32_t rows_at_once(CudaStream& stream, const ExpertCall& call) {
  constexpr int64_t kMaxGridRows = 32768;  // of the 65535 that a grid may have
  const int64_t columns = std::max(int64_t{call.gate_up.first.format.num_orders} * call.hidden,
                                   int64_t{call.down.first.format.num_orders} * call.intermediate);
  int64_t pairs = kMaxGridRows;
  if (columns > 0) {
    const auto scratch = static_cast<int64_t>(matmul_state(stream).converted().size());
    pairs = std::min(pairs, scratch / (columns * int64_t{sizeof(uint16_t)}));
  }
  SLUICE_CHECK(pairs >= call.num_slots, "{} slots of {} columns", call.num_slots, columns);
  return static_cast<int32_t>(pairs / call.num_slots);
}

}  // namespace

void run_each_pair(CudaStream& stream, const ExpertCall& call) {
  SLUICE_CHECK(call.num_slots <= kMaxSlots, "{} slots", call.num_slots);
  const int32_t most = rows_at_once(stream, call);
  for (int32_t begin = 0; begin < call.num_rows;) {
    const int32_t count = std::min(call.num_rows - begin, most);
    const ExpertCall part = part_of(call, begin, count);
    multiply_gates(stream, part);
    multiply_downs(stream, part);
    begin += count;
  }
}

}  // namespace sluice::cuda
