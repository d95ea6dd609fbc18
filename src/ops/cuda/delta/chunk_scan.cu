// The chunks of a sequence one after the other: the part of the gated delta rule that needs S.
//
// A chunk, with what chunk_factors.cu made of it:
//   R = beta (V - exp(G) K S),  D = T R,  out = exp(G) Q S + P D
//   S = exp(G of the last row) S + K^T (exp(G of the last row - G) D)
// R is formed from S itself, in f32, and not as a difference of two products with T: only what is
// left of V is rounded. Bound: products, 3.8 MFLOP a chunk and 64 columns, one chunk after the
// other; 96 blocks for 48 heads. Tile: 64 columns of a head of a sequence, S in f32; four warps
// with products of 16 columns each, so that every warp loads all of Q, K, T and P from shared
// memory. The next chunk's matrices and values are copied during this one. Hopper has a kernel that
// does without these loads (chunk_scan_sm90.cu). Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/delta/chunk_walk.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/instructions.cuh"

namespace sluice::cuda {
namespace {

using namespace delta;  // NOLINT(google-build-using-namespace)

// What chunk_factors.cu left of one chunk, as it lies in memory.
struct alignas(128) Stage {
  ChunkVectors vectors;
  ChunkFactors factors;
  ChunkGates gates;
};

// 98 KiB, which GPUs of sm_86, sm_89 and sm_120 have, too: one block a multiprocessor there.
struct Shared {
  Stage stages[2];
};
static_assert(sizeof(Shared) <= size_t{99} << 10);

template <typename Part>
__device__ inline void copy_part(const Part& from, Part& to) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&from);
  auto* destination = reinterpret_cast<std::byte*>(&to);
  for (int i = static_cast<int>(threadIdx.x) * 16; i < static_cast<int>(sizeof(Part));
       i += kScanThreads * 16) {
    copy_16(destination + i, bytes + i, true);
  }
}

// Starts the copies of a chunk's matrices.
__device__ inline void copy_stage(const ChunkCall& call, const Head& head, int32_t slot,
                                  Stage& stage) {
  copy_part(*call.vectors_of(slot, head.k_head), stage.vectors);
  copy_part(*call.factors_of(slot, head.v_head), stage.factors);
  copy_part(*call.gates_of(slot, head.v_head), stage.gates);
  end_of_copies();
}

// V of the chunk from row `begin` on. Asked for when that of the chunk before has been used: a load
// from memory takes as long as the products with S.
__device__ inline void load_values(const ChunkCall& call, const Head& head, const Place& place,
                                   int32_t begin, OfRows& v) {
  const DeltaShape& shape = call.rule.states.shape;
  const float* values = call.rule.mixed + begin * shape.num_channels() + 2 * shape.k_width() +
                        head.v_head * shape.v_dim + head.block * kDeltaColumns;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[tile][e] = values[place.row(tile, e) * shape.num_channels() + place.column(e)];
    }
  }
}

__device__ inline void store_out(const ChunkCall& call, const Head& head, const Place& place,
                                 int32_t begin, const OfRows& sum) {
  const DeltaShape& shape = call.rule.states.shape;
  float* out = call.rule.out + begin * shape.v_width() + head.v_head * shape.v_dim +
               head.block * kDeltaColumns;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      out[place.row(tile, e) * shape.v_width() + place.column(e)] = sum[tile][e];
    }
  }
}

// K S and Q S.
__device__ inline void multiply_state(const Place& place, const Stage& stage, const State& s,
                                      OfRows& keys, OfRows& queries) {
#pragma unroll
  for (int step = 0; step < kChunkDim / 16; ++step) {
    uint32_t left[4];
    as_left(s[2 * step], s[2 * step + 1], left);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; tile += 2) {
      uint32_t k[4], q[4];
      load_right_turned(stage.vectors.k, 16 * step, 8 * tile, place.lane, k);
      load_right_turned(stage.vectors.q, 16 * step, 8 * tile, place.lane, q);
      multiply_pair(keys[tile], keys[tile + 1], left, k);
      multiply_pair(queries[tile], queries[tile + 1], left, q);
    }
  }
}

// sum += m b, where m has numbers up to the blocks of 16 on its diagonal; `left`: b in steps of 16
// of its rows.
__device__ inline void multiply_lower(const Panel& m, const LeftOfRows& left, const Place& place,
                                      OfRows& sum) {
#pragma unroll
  for (int step = 0; step < kRowSteps; ++step) {
#pragma unroll
    for (int tile = 2 * step; tile < kRowTiles; tile += 2) {
      uint32_t right[4];
      load_right_turned(&m, 16 * step, 8 * tile, place.lane, right);
      multiply_pair(sum[tile], sum[tile + 1], left[step], right);
    }
  }
}

// S += K^T (left D); `delta`: left D.
__device__ inline void add_to_state(const Place& place, const Stage& stage, const LeftOfRows& delta,
                                    State& s) {
#pragma unroll
  for (int step = 0; step < kRowSteps; ++step) {
#pragma unroll
    for (int tile = 0; tile < kStateTiles; tile += 2) {
      uint32_t k[4];
      load_right(stage.vectors.k, 16 * step, 8 * tile, place.lane, k);
      multiply_pair(s[tile], s[tile + 1], delta[step], k);
    }
  }
}

// A chunk of rows from `begin` on. values: V, in whose place that of the next chunk is loaded if
// there is one.
__device__ inline void compute_chunk(const ChunkCall& call, const Head& head, const Place& place,
                                     int32_t begin, bool has_next, const Stage& stage,
                                     OfRows& values, State& s) {
  OfRows rest = {}, out = {};
  multiply_state(place, stage, s, rest, out);
  RowFactors decay, factors;
  load_factors(place, stage.gates.decay, decay);
  load_factors(place, stage.gates.beta, factors);
  make_rest(decay, factors, values, rest);
  if (has_next) load_values(call, head, place, begin + kDeltaChunk, values);
  LeftOfRows left;
  as_left(rest, left);
  OfRows delta = {};
  multiply_lower(stage.factors.t, left, place, delta);
  as_left(delta, left);
  scale_rows(decay, out);
  multiply_lower(stage.factors.p, left, place, out);
  store_out(call, head, place, begin, out);
  load_factors(place, stage.gates.left, factors);
  scale_rows(factors, delta);
  as_left(delta, left);
  decay_state(stage.gates, s);
  add_to_state(place, stage, left, s);
}

// grid: blocks of columns of all value heads; sequences.
__global__ void __launch_bounds__(kScanThreads) scan_chunks(const ChunkCall call) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  let_next_kernel_start();
  const DeltaStates& states = call.rule.states;
  const Head head = head_of_block(states.shape);
  const Place place = place_of_thread();
  const SequencePart part = part_of(call.rule.rows, static_cast<int32_t>(blockIdx.y));
  wait_for_earlier_work();
  const Walk walk = walk_of(call, part);
  if (walk.is_empty()) return;
  copy_stage(call, head, walk.slot(walk.first), shared.stages[0]);
  // S comes while the first stage does.
  State s = {};
  load_state(states, head, place, walk.from, s);
  OfRows values;
  load_values(call, head, place, walk.row(walk.first), values);
  for (int32_t i = walk.first; i < walk.end; ++i) {
    const bool has_next = i + 1 < walk.end;
    wait_for_copies();
    __syncthreads();  // the stage is here, and nobody reads the other one
    if (has_next) {
      copy_stage(call, head, walk.slot(i + 1), shared.stages[(i + 1 - walk.first) % 2]);
    }
    compute_chunk(call, head, place, walk.row(i), has_next, shared.stages[(i - walk.first) % 2],
                  values, s);
  }
  store_state(states, head, place, part.to, s);
}

}  // namespace

size_t chunk_scan_shared_bytes() { return sizeof(Shared); }

void launch_chunk_scan(CudaStream& stream, const ChunkCall& call) {
  check_cuda(cudaFuncSetAttribute(scan_chunks, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(Shared)),
             "cudaFuncSetAttribute");
  launch_early(stream, scan_chunks, {scan_grid(call), dim3(kScanThreads), sizeof(Shared)}, call);
}

}  // namespace sluice::cuda
