// The walk over the chunks of a sequence (chunk_scan.cu) by products of warpgroups.
//
// The 64 columns of a block are the 64 rows of a product of a warpgroup. S, R and D, in registers,
// are left operands; Q, K, T and P are read from shared memory once, by the tensor cores, as they
// were copied. Bound: products, some 1,000 cycles a chunk, one chunk after the other; 65 KiB a
// chunk and block come from L2 or memory, and 16 go. The tensor cores wait while R is made and
// while D becomes an operand, and compute Q S and P D meanwhile where they can. Tile: 64 columns of
// a head of a sequence, S in f32; one warpgroup, one block a multiprocessor. The next chunk is
// copied during this one, its matrices in bulk by one thread. Compiled for sm_90a only. Thread
// rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/delta/chunk_walk.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda {
namespace {

using namespace delta;  // NOLINT(google-build-using-namespace)

// Rows of a chunk by columns of the block, in f32: V and the output. Padded so that lanes are in
// different banks.
constexpr int kFloatWidth = kDeltaColumns + 4;
using Rows = float[kDeltaChunk][kFloatWidth];

// What chunk_factors.cu left of one chunk, and V.
struct alignas(kSwizzleUnitBytes) Stage {
  ChunkVectors vectors;
  ChunkFactors factors;
  ChunkGates gates;
  Rows values;
};
constexpr uint32_t kMatrixBytes = sizeof(ChunkVectors) + sizeof(ChunkFactors) + sizeof(ChunkGates);

struct Shared {
  Stage stages[2];
  Rows out;
  uint64_t arrived[2];
};
constexpr size_t kSharedBytes = sizeof(Shared) + kSwizzleUnitBytes;

// Starts the copies of a chunk's matrices, in one thread.
__device__ inline void copy_matrices(const ChunkCall& call, const Head& head, int32_t slot,
                                     Stage& stage, uint64_t& arrived) {
  const uint32_t barrier = shared_address(&arrived);
  barrier_arrive_expecting(barrier, kMatrixBytes);
  copy_bytes(shared_address(&stage.vectors), call.vectors_of(slot, head.k_head),
             sizeof(ChunkVectors), barrier);
  copy_bytes(shared_address(&stage.factors), call.factors_of(slot, head.v_head),
             sizeof(ChunkFactors), barrier);
  copy_bytes(shared_address(&stage.gates), call.gates_of(slot, head.v_head), sizeof(ChunkGates),
             barrier);
}

// A thread copies pieces of four numbers of each eighth row; 16 threads have a row. Bulk copies of
// rows would have the threads of a warp wait for each other, some 1,000 cycles a chunk.
constexpr int kRowThreads = kDeltaColumns / 4;
constexpr int kRowsAtOnce = kScanThreads / kRowThreads;

// Starts the copies of V of the chunk from row `begin` on.
__device__ inline void copy_values(const ChunkCall& call, const Head& head, int32_t begin,
                                   Rows& values) {
  const DeltaShape& shape = call.rule.states.shape;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = thread / kRowThreads;
  const int32_t column = thread % kRowThreads * 4;
  // Hidden, or places of all rows would stay in registers from chunk to chunk.
  const int64_t stride = hidden(static_cast<int32_t>(shape.num_channels()));
  const float* from = call.rule.mixed + (begin + row) * stride + 2 * shape.k_width() +
                      head.v_head * shape.v_dim + head.block * kDeltaColumns + column;
#pragma unroll
  for (int i = 0; i < kDeltaChunk; i += kRowsAtOnce) {
    copy_16(&values[row + i][column], from, true);
    from += kRowsAtOnce * stride;
  }
  end_of_copies();
}

__device__ inline void write_out(const ChunkCall& call, const Head& head, int32_t begin,
                                 const Rows& out) {
  const DeltaShape& shape = call.rule.states.shape;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = thread / kRowThreads;
  const int32_t column = thread % kRowThreads * 4;
  const int64_t stride = hidden(static_cast<int32_t>(shape.v_width()));
  float* to = call.rule.out + (begin + row) * stride + head.v_head * shape.v_dim +
              head.block * kDeltaColumns + column;
#pragma unroll
  for (int i = 0; i < kDeltaChunk; i += kRowsAtOnce) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(&out[row + i][column]);
    to += kRowsAtOnce * stride;
  }
}

__device__ __forceinline__ void load_rows(const Place& place, const Rows& rows, OfRows& numbers) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) numbers[tile][e] = rows[place.row(tile, e)][place.column(e)];
  }
}

__device__ __forceinline__ void store_rows(const Place& place, const OfRows& numbers, Rows& rows) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) rows[place.row(tile, e)][place.column(e)] = numbers[tile][e];
  }
}

// The numbers of a lane as the operands of a product name them.
template <int kTiles>
__device__ __forceinline__ auto flat(float (&numbers)[kTiles][4]) -> float (&)[kTiles * 4] {
  return reinterpret_cast<float(&)[kTiles * 4]>(numbers);
}

// sum = x S, where x is Q or K and `state` is S.
__device__ __forceinline__ void multiply_state(const Panel (&x)[kChunkDim / kPanelWidth],
                                               const uint32_t (&state)[kChunkDim / 16][4],
                                               OfRows& sum) {
  constexpr int kSteps = kPanelWidth / 16;  // of a panel
  const uint64_t matrix = matrix_descriptor(shared_address(&x), 16, kSwizzleUnitBytes);
#pragma unroll
  for (int step = 0; step < kChunkDim / 16; ++step) {
    const auto from = static_cast<uint32_t>(step / kSteps * sizeof(Panel) + step % kSteps * 32);
    wgmma_scores(flat(sum), state[step], advanced(matrix, from), step > 0);
  }
  wgmma_commit();
}

// sum = m b, or += with `accumulate`; `left`: b.
__device__ __forceinline__ void multiply_rows(const Panel& m, const LeftOfRows& left,
                                              bool accumulate, OfRows& sum) {
  const uint64_t matrix = matrix_descriptor(shared_address(&m), 16, kSwizzleUnitBytes);
#pragma unroll
  for (uint32_t step = 0; step < kRowSteps; ++step) {
    wgmma_scores(flat(sum), left[step], advanced(matrix, step * 32), accumulate || step > 0);
  }
  wgmma_commit();
}

// S += K^T (left D); `delta`: left D.
__device__ __forceinline__ void add_to_state(const Panel (&k)[kChunkDim / kPanelWidth],
                                             const LeftOfRows& delta, State& s) {
  const uint64_t matrix = matrix_descriptor(shared_address(&k), sizeof(Panel), kSwizzleUnitBytes);
#pragma unroll
  for (uint32_t step = 0; step < kRowSteps; ++step) {
    wgmma_values(flat(s), delta[step], advanced(matrix, step * 2 * kSwizzleUnitBytes));
  }
  wgmma_commit();
}

// A chunk, from S as a left operand, `state`, to that of the next. To its output, `out`, P D is
// still being added. Loads from shared memory are asked for before a wait, not after it.
__device__ inline void compute_chunk(const Place& place, const Stage& stage, OfRows& out, State& s,
                                     uint32_t (&state)[kChunkDim / 16][4]) {
  OfRows rest, values;
  wgmma_fence();
  multiply_state(stage.vectors.k, state, rest);
  load_rows(place, stage.values, values);
  RowFactors decay, beta;
  load_factors(place, stage.gates.decay, decay);
  load_factors(place, stage.gates.beta, beta);
  wgmma_wait<0>();
  pin_registers(flat(rest));
  make_rest(decay, beta, values, rest);
  LeftOfRows left;
  as_left<kRowSteps>(rest, left);
  OfRows delta;
  wgmma_fence();
  multiply_rows(stage.factors.t, left, false, delta);
  multiply_state(stage.vectors.q, state, out);
  decay_state(stage.gates, s);
  RowFactors kept;
  load_factors(place, stage.gates.left, kept);
  wgmma_wait<1>();
  pin_registers(flat(delta));
  as_left<kRowSteps>(delta, left);
  scale_rows(kept, delta);
  LeftOfRows left_kept;
  as_left<kRowSteps>(delta, left_kept);
  pin_registers(flat(s));
  wgmma_fence();
  add_to_state(stage.vectors.k, left_kept, s);
  wgmma_wait<1>();
  pin_registers(flat(out));
  scale_rows(decay, out);
  pin_registers(flat(out));
  wgmma_fence();
  multiply_rows(stage.factors.p, left, true, out);
  wgmma_wait<1>();
  pin_registers(flat(s));
  as_left<kChunkDim / 16>(s, state);
}

// grid: blocks of columns of all value heads; sequences.
__global__ void __launch_bounds__(kScanThreads) scan_by_warpgroups(const ChunkCall call) {
  auto& shared = *reinterpret_cast<Shared*>(first_unit(dynamic_shared_memory()));
  let_next_kernel_start();
  const DeltaStates& states = call.rule.states;
  const Head head = head_of_block(states.shape);
  const Place place = place_of_thread();
  const SequencePart part = part_of(call.rule.rows, static_cast<int32_t>(blockIdx.y));
  if (threadIdx.x == 0) {
    for (uint64_t& arrived : shared.arrived) barrier_init(shared_address(&arrived), 1);
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier_work();
  const Walk walk = walk_of(call, part);
  if (walk.is_empty()) return;
  const auto copy = [&](int32_t i) {
    if (i >= walk.end) return;
    const uint32_t at = static_cast<uint32_t>(i - walk.first) % 2;
    if (threadIdx.x == 0) {
      copy_matrices(call, head, walk.slot(i), shared.stages[at], shared.arrived[at]);
    }
    copy_values(call, head, walk.row(i), shared.stages[at].values);
  };
  copy(walk.first);
  copy(walk.first + 1);
  State s = {};
  load_state(states, head, place, walk.from, s);
  uint32_t state[kChunkDim / 16][4];
  as_left<kChunkDim / 16>(s, state);
  wait_for_copies();
  __syncthreads();  // V of the first two chunks is there
  for (int32_t i = walk.first; i < walk.end; ++i) {
    const auto count = static_cast<uint32_t>(i - walk.first);
    barrier_wait(shared_address(&shared.arrived[count % 2]), count / 2 % 2);
    OfRows out;
    compute_chunk(place, shared.stages[count % 2], out, s, state);
    __syncthreads();  // the output of the chunk before has been read from shared memory
    wgmma_wait<0>();
    pin_registers(flat(out));
    store_rows(place, out, shared.out);
    wait_for_copies();
    // The output and the next V are there, and all products are done: the stage is free.
    __syncthreads();
    copy(i + 2);
    write_out(call, head, walk.row(i), shared.out);
  }
  store_state(states, head, place, part.to, s);
}

}  // namespace

bool has_warpgroup_scan(CudaStream& stream) { return stream.cuda_device().properties().major == 9; }

void launch_warpgroup_scan(CudaStream& stream, const ChunkCall& call) {
  check_cuda(cudaFuncSetAttribute(scan_by_warpgroups, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes),
             "cudaFuncSetAttribute");
  launch_early(stream, scan_by_warpgroups, {scan_grid(call), dim3(kScanThreads), kSharedBytes},
               call);
}

}  // namespace sluice::cuda
