// The chunks of a sequence one after the other: the part of the gated delta rule that needs S.
//
// A chunk, with what chunk_factors.cu made of it:
//   R = beta (V - exp(G) K S),  D = T R,  out = exp(G) Q S + P D
//   S = exp(G of the last row) S + K^T (exp(G of the last row - G) D)
// R is formed from S itself, in f32, and not as a difference of two products with T: only what is
// left of V is rounded. All of it is computed transposed, with 16 columns of a head as the rows of
// a warp's products: the sums of one product then are the left operand of the next, and S, R and D
// never leave the registers of their warp. Bound: products, 3.8 MFLOP a chunk and 64 columns, one
// chunk after the other; 96 blocks for 48 heads. Tile: 64 columns of a head of a sequence, S in
// f32; four warps. The next chunk's matrices and values are copied during this one. Thread rule:
// enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/delta/products.cuh"
#include "ops/cuda/instructions.cuh"

namespace sluice::cuda {
namespace {

using namespace delta;  // products

constexpr int kThreads = 128;
constexpr int kColumns = kDeltaColumns;
constexpr int kRowTiles = kDeltaChunk / 8;   // of 8 rows of a chunk
constexpr int kStateTiles = kChunkDim / 8;   // of 8 rows of S
constexpr int kRowSteps = kDeltaChunk / 16;  // of products that sum over rows of a chunk
constexpr int kVectorWidth = kChunkDim + kRowPadding;
constexpr int kWidth = kDeltaChunk + kRowPadding;
static_assert(kColumns == kThreads / kWarpThreads * 16, "a warp has 16 columns");

// What chunk_factors.cu left of one chunk: 53 KiB, of which the next one's are on their way.
struct Stage {
  uint16_t q[kDeltaChunk][kVectorWidth];
  uint16_t k[kDeltaChunk][kVectorWidth];
  uint16_t t[kDeltaChunk][kWidth];
  uint16_t p[kDeltaChunk][kWidth];
  float decay[kDeltaChunk];  // exp(G)
  float beta[kDeltaChunk];
  float left[kDeltaChunk];  // exp(G of the last row - G)
};
static_assert(sizeof(Stage) % 16 == 0);

// 106 KiB: two blocks a multiprocessor.
struct Shared {
  Stage stages[2];
};

// Numbers of a lane = 4 g + c of a transposed matrix: of columns g and g + 8 of the warp, and rows
// 2 c and 2 c + 1 of each tile.
using OfRows = float[kRowTiles][4];
using State = float[kStateTiles][4];

// A lane's place in them.
struct Place {
  int lane;
  int first_column;  // of the warp, in the block

  __device__ int column(int e) const { return first_column + lane / 4 + e / 2 * 8; }
  __device__ int row(int tile, int e) const { return 8 * tile + lane % 4 * 2 + e % 2; }
};

// 16 rows of a transposed matrix as a left operand, rounded: two tiles of its numbers.
__device__ __forceinline__ void as_left(const float (&low)[4], const float (&high)[4],
                                        uint32_t (&left)[4]) {
  left[0] = pack_pair(low[0], low[1]);
  left[1] = pack_pair(low[2], low[3]);
  left[2] = pack_pair(high[0], high[1]);
  left[3] = pack_pair(high[2], high[3]);
}

// Where the block's columns lie.
struct Head {
  int32_t v_head;
  int32_t k_head;
  int32_t block;  // of columns
};

// Starts the copies of a chunk's matrices.
__device__ inline void copy_stage(const ChunkCall& call, const Head& head, int32_t slot,
                                  Stage& stage) {
  constexpr int kPieces = kChunkDim / 8;
  const uint16_t* vectors = call.vectors_of(slot, head.k_head);
  for (int i = threadIdx.x; i < 2 * kDeltaChunk * kPieces; i += kThreads) {
    const int row = i / kPieces;
    uint16_t* to = row < kDeltaChunk ? stage.q[row] : stage.k[row - kDeltaChunk];
    copy_16(to + i % kPieces * 8, vectors + i * 8, true);
  }
  // A row's pieces up to its diagonal block of 16; the others were not written.
  constexpr int kFactorPieces = kDeltaChunk / 8;
  const uint16_t* factors = call.factors_of(slot, head.v_head);
  for (int i = threadIdx.x; i < 2 * kDeltaChunk * kFactorPieces; i += kThreads) {
    const int row = i / kFactorPieces % kDeltaChunk;
    const int piece = i % kFactorPieces;
    if (piece / 2 > row / 16) continue;
    uint16_t* to = i < kDeltaChunk * kFactorPieces ? stage.t[row] : stage.p[row];
    copy_16(to + piece * 8, factors + i * 8, true);
  }
  const float* gates = call.gates_of(slot, head.v_head);
  for (int i = threadIdx.x; i < 3 * kDeltaChunk / 4; i += kThreads) {
    copy_16(stage.decay + i * 4, gates + i * 4, true);
  }
  end_of_copies();
}

// V of a chunk. Asked for when that of the chunk before has been used: a load from memory takes as
// long as the products with S.
__device__ inline void load_values(const ChunkCall& call, const Head& head, const Place& place,
                                   int32_t begin, OfRows& v) {
  const DeltaShape& shape = call.rule.states.shape;
  const float* values = call.rule.mixed + begin * shape.num_channels() + 2 * shape.k_width() +
                        head.v_head * shape.v_dim + head.block * kColumns;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[tile][e] = values[place.row(tile, e) * shape.num_channels() + place.column(e)];
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
      load_right_turned<kVectorWidth>(stage.k, 16 * step, 8 * tile, place.lane, k);
      load_right_turned<kVectorWidth>(stage.q, 16 * step, 8 * tile, place.lane, q);
      multiply_pair(keys[tile], keys[tile + 1], left, k);
      multiply_pair(queries[tile], queries[tile + 1], left, q);
    }
  }
}

// R, from V and K S.
__device__ inline void make_rest(const Place& place, const Stage& stage, const OfRows& v,
                                 OfRows& rest) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = place.row(tile, e);
      rest[tile][e] = stage.beta[row] * (v[tile][e] - stage.decay[row] * rest[tile][e]);
    }
  }
}

// sum += m b, where m has numbers up to the blocks of 16 on its diagonal; `left`: b in steps of 16
// of its rows.
__device__ inline void multiply_lower(const uint16_t (*m)[kWidth],
                                      const uint32_t (&left)[kRowSteps][4], const Place& place,
                                      OfRows& sum) {
#pragma unroll
  for (int step = 0; step < kRowSteps; ++step) {
#pragma unroll
    for (int tile = 2 * step; tile < kRowTiles; tile += 2) {
      uint32_t right[4];
      load_right_turned<kWidth>(m, 16 * step, 8 * tile, place.lane, right);
      multiply_pair(sum[tile], sum[tile + 1], left[step], right);
    }
  }
}

// The left operands of products that sum over the rows of a chunk.
__device__ inline void as_left(const OfRows& numbers, uint32_t (&left)[kRowSteps][4]) {
#pragma unroll
  for (int step = 0; step < kRowSteps; ++step) {
    as_left(numbers[2 * step], numbers[2 * step + 1], left[step]);
  }
}

// out = exp(G) Q S + P D; `sum` is Q S.
__device__ inline void write_out(const ChunkCall& call, const Head& head, const Place& place,
                                 int32_t begin, const Stage& stage,
                                 const uint32_t (&delta)[kRowSteps][4], OfRows& sum) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[tile][e] *= stage.decay[place.row(tile, e)];
  }
  multiply_lower(stage.p, delta, place, sum);
  const DeltaShape& shape = call.rule.states.shape;
  float* out =
      call.rule.out + begin * shape.v_width() + head.v_head * shape.v_dim + head.block * kColumns;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      out[place.row(tile, e) * shape.v_width() + place.column(e)] = sum[tile][e];
    }
  }
}

// S = exp(G of the last row) S + K^T (left D); `delta`: left D.
__device__ inline void step_state(const Place& place, const Stage& stage,
                                  const uint32_t (&delta)[kRowSteps][4], State& s) {
  const float decay = stage.decay[kDeltaChunk - 1];
#pragma unroll
  for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[tile][e] *= decay;
  }
#pragma unroll
  for (int step = 0; step < kRowSteps; ++step) {
#pragma unroll
    for (int tile = 0; tile < kStateTiles; tile += 2) {
      uint32_t k[4];
      load_right<kVectorWidth>(stage.k, 16 * step, 8 * tile, place.lane, k);
      multiply_pair(s[tile], s[tile + 1], delta[step], k);
    }
  }
}

// A chunk of rows from `begin` on. values: V, in whose place that of the next chunk is loaded if
// there is one.
__device__ inline void compute_chunk(const ChunkCall& call, const Head& head, const Place& place,
                                     int32_t begin, bool has_next, const Stage& stage,
                                     OfRows& values, State& s) {
  OfRows rest = {}, queries = {};
  multiply_state(place, stage, s, rest, queries);
  make_rest(place, stage, values, rest);
  if (has_next) load_values(call, head, place, begin + kDeltaChunk, values);
  uint32_t left[kRowSteps][4];
  as_left(rest, left);
  OfRows delta = {};
  multiply_lower(stage.t, left, place, delta);
  as_left(delta, left);
  write_out(call, head, place, begin, stage, left, queries);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) delta[tile][e] *= stage.left[place.row(tile, e)];
  }
  as_left(delta, left);
  step_state(place, stage, left, s);
}

// The chunks of the sequence that this launch computes, by index, and the slot that S comes from.
struct Walk {
  ChunkRange chunks;
  int32_t first;
  int32_t end;
  int32_t from;
};

__device__ inline Walk walk_of(const ChunkCall& call, const SequencePart& part) {
  Walk walk;
  walk.chunks = chunks_of(part);
  const int32_t slot = slot_of_chunk(walk.chunks.begin);
  walk.first = max(0, call.first_slot - slot);
  walk.end = min(walk.chunks.count, call.first_slot + call.num_slots - slot);
  const bool continues = walk.first > 0 || walk.chunks.begin > part.begin;
  walk.from = continues ? part.to : part.from;
  return walk;
}

// grid: blocks of columns of all value heads; sequences.
__global__ void __launch_bounds__(kThreads) scan_chunks(const ChunkCall call) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  let_next_kernel_start();
  const DeltaShape& shape = call.rule.states.shape;
  const auto num_blocks = static_cast<int32_t>(shape.v_dim / kColumns);
  Head head;
  head.v_head = static_cast<int32_t>(blockIdx.x) / num_blocks;
  head.k_head = head.v_head / (shape.num_v_heads / shape.num_k_heads);
  head.block = static_cast<int32_t>(blockIdx.x) % num_blocks;
  const Place place{static_cast<int>(threadIdx.x % kWarpThreads),
                    static_cast<int>(threadIdx.x / kWarpThreads) * 16};
  const SequencePart part = part_of(call.rule.rows, static_cast<int32_t>(blockIdx.y));
  wait_for_earlier_work();
  if (part.is_empty()) return;
  const Walk walk = walk_of(call, part);
  if (walk.first >= walk.end) return;
  const int32_t first_slot = slot_of_chunk(walk.chunks.begin);
  copy_stage(call, head, first_slot + walk.first, shared.stages[0]);
  // S comes while the first stage does; at position 0 it is zeros, and nothing is read.
  State s = {};
  const int64_t offset = shape.block_offset(head.block);
  if (walk.from >= 0) {
    const float* from = matrix_in(call.rule.states, walk.from, head.v_head) + offset;
#pragma unroll
    for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[tile][e] = from[place.row(tile, e) * kColumns + place.column(e)];
      }
    }
  }
  OfRows values;
  load_values(call, head, place, walk.chunks.begin + walk.first * kDeltaChunk, values);
  for (int32_t i = walk.first; i < walk.end; ++i) {
    const bool has_next = i + 1 < walk.end;
    wait_for_copies();
    __syncthreads();  // the stage is here, and nobody reads the other one
    if (has_next) {
      copy_stage(call, head, first_slot + i + 1, shared.stages[(i + 1 - walk.first) % 2]);
    }
    compute_chunk(call, head, place, walk.chunks.begin + i * kDeltaChunk, has_next,
                  shared.stages[(i - walk.first) % 2], values, s);
  }
  float* to = matrix_in(call.rule.states, part.to, head.v_head) + offset;
#pragma unroll
  for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[place.row(tile, e) * kColumns + place.column(e)] = s[tile][e];
    }
  }
}

}  // namespace

size_t chunk_scan_shared_bytes() { return sizeof(Shared); }

void launch_chunk_scan(CudaStream& stream, const ChunkCall& call) {
  check_cuda(cudaFuncSetAttribute(scan_chunks, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(Shared)),
             "cudaFuncSetAttribute");
  const DeltaShape& shape = call.rule.states.shape;
  const dim3 grid(static_cast<unsigned>(shape.num_v_heads * (shape.v_dim / kColumns)),
                  static_cast<unsigned>(call.rule.rows.num_seqs));
  launch_early(stream, scan_chunks, {grid, dim3(kThreads), sizeof(Shared)}, call);
}

}  // namespace sluice::cuda
