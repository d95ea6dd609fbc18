// The chunks of a sequence one after the other: the part of the gated delta rule that needs S.
//
// A chunk, with what chunk_factors.cu made of it:
//   R = beta (V - exp(G) K S),  D = T R,  out = exp(G) Q S + P D
//   S = exp(G of the last row) S + K^T (exp(G of the last row - G) D)
// R is formed from S itself, in f32, and not as a difference of two products with T: only what is
// left of V is rounded. Bound: products, 8.4 MFLOP a chunk and 64 columns, one chunk after the
// other; 96 blocks for 48 heads. Tile: 64 columns of a head of a sequence, S in registers in f32
// and in shared memory in bf16; eight warps, each 16 rows (of S 32) and 32 columns of a product.
// The next chunk's matrices are copied during this one. Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/delta/products.cuh"
#include "ops/cuda/instructions.cuh"

namespace sluice::cuda {
namespace {

using namespace delta;  // products

constexpr int kThreads = 256;
constexpr int kColumns = kDeltaColumns;
constexpr int kWarpColumns = 32;
constexpr int kTiles = kWarpColumns / 8;  // of 8 columns, of a warp
constexpr int kVectorWidth = kChunkDim + kRowPadding;
constexpr int kWidth = kDeltaChunk + kRowPadding;
static_assert(kColumns == kDeltaChunk);

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

// 151 KiB: one block a multiprocessor. S, R and D pass through it because every warp needs all rows
// of them as right operands.
struct Shared {
  Stage stages[2];
  uint16_t s[kChunkDim][kWidth];
  uint16_t r[kDeltaChunk][kWidth];
  uint16_t d[kDeltaChunk][kWidth];
  uint16_t d_left[kDeltaChunk][kWidth];  // D times `left`
};

// A warp's place in the products.
struct Place {
  int lane;
  int rows;     // its index among four: rows 16 * rows of a chunk, 32 * rows of S
  int columns;  // of the block's, its first

  __device__ int row(int half) const { return 16 * rows + lane / 4 + 8 * half; }
  __device__ int column(int tile) const { return columns + 8 * tile + lane % 4 * 2; }
};

// Accumulators of 16 rows.
using Sixteen = float[kTiles][4];

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

// V of a warp's rows and columns of a chunk. Asked for a chunk ahead: the products with S take
// about as long as a load from memory, and wait for it otherwise.
using Values = float2[kTiles][2];

__device__ inline void load_values(const ChunkCall& call, const Head& head, const Place& place,
                                   int32_t begin, Values& v) {
  const DeltaShape& shape = call.rule.states.shape;
  const float* values = call.rule.mixed + begin * shape.num_channels() + 2 * shape.k_width() +
                        head.v_head * shape.v_dim + head.block * kColumns;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      v[tile][half] = *reinterpret_cast<const float2*>(
          values + place.row(half) * shape.num_channels() + place.column(tile));
    }
  }
}

// R of a warp's rows and columns; `queries` becomes Q S.
__device__ inline void make_rest(const Place& place, const Values& v, const Stage& stage,
                                 Shared& shared, Sixteen& queries) {
  Sixteen keys = {};
#pragma unroll
  for (int step = 0; step < kChunkDim / 16; ++step) {
    uint32_t k[4], q[4];
    load_left<kVectorWidth>(stage.k, 16 * place.rows, 16 * step, place.lane, k);
    load_left<kVectorWidth>(stage.q, 16 * place.rows, 16 * step, place.lane, q);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      uint32_t s[4];
      load_right<kWidth>(shared.s, 16 * step, place.columns + 8 * tile, place.lane, s);
      multiply_pair(keys[tile], keys[tile + 1], k, s);
      multiply_pair(queries[tile], queries[tile + 1], q, s);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = place.row(half);
    const float decay = stage.decay[row];
    const float beta = stage.beta[row];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      store_pair(&shared.r[row][place.column(tile)],
                 beta * (v[tile][half].x - decay * keys[tile][2 * half]),
                 beta * (v[tile][half].y - decay * keys[tile][2 * half + 1]));
    }
  }
}

// sum += m b over the columns of m up to the diagonal block of the warp's rows.
__device__ inline void multiply_lower(const uint16_t (*m)[kWidth], const uint16_t (*b)[kWidth],
                                      const Place& place, Sixteen& sum) {
#pragma unroll
  for (int step = 0; step < kDeltaChunk / 16; ++step) {
    if (step > place.rows) continue;
    uint32_t left[4];
    load_left<kWidth>(m, 16 * place.rows, 16 * step, place.lane, left);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      uint32_t right[4];
      load_right<kWidth>(b, 16 * step, place.columns + 8 * tile, place.lane, right);
      multiply_pair(sum[tile], sum[tile + 1], left, right);
    }
  }
}

// D = T R, as it is and times `left`.
__device__ inline void make_delta(const Place& place, const Stage& stage, Shared& shared) {
  Sixteen delta = {};
  multiply_lower(stage.t, shared.r, place, delta);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = place.row(half);
    const float left = stage.left[row];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float low = delta[tile][2 * half];
      const float high = delta[tile][2 * half + 1];
      store_pair(&shared.d[row][place.column(tile)], low, high);
      store_pair(&shared.d_left[row][place.column(tile)], low * left, high * left);
    }
  }
}

// out = exp(G) Q S + P D; `sum` is Q S.
__device__ inline void write_out(const ChunkCall& call, const Head& head, const Place& place,
                                 int32_t begin, const Stage& stage, const Shared& shared,
                                 Sixteen& sum) {
  const float decay[2] = {stage.decay[place.row(0)], stage.decay[place.row(1)]};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[tile][e] *= decay[e / 2];
  }
  multiply_lower(stage.p, shared.d, place, sum);
  const DeltaShape& shape = call.rule.states.shape;
  float* out =
      call.rule.out + begin * shape.v_width() + head.v_head * shape.v_dim + head.block * kColumns;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(out + place.row(half) * shape.v_width() + place.column(tile)) = {
          sum[tile][2 * half], sum[tile][2 * half + 1]};
    }
  }
}

// S of a warp: 32 rows.
using State = float[2][kTiles][4];

// S = exp(G of the last row) S + K^T (left D).
__device__ inline void step_state(const Place& place, const Stage& stage, const Shared& shared,
                                  State& s) {
  const float decay = stage.decay[kDeltaChunk - 1];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[part][tile][e] *= decay;
    }
  }
#pragma unroll
  for (int step = 0; step < kDeltaChunk / 16; ++step) {
    uint32_t k[2][4];
    load_left_turned<kVectorWidth>(stage.k, 32 * place.rows, 16 * step, place.lane, k[0]);
    load_left_turned<kVectorWidth>(stage.k, 32 * place.rows + 16, 16 * step, place.lane, k[1]);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      uint32_t d[4];
      load_right<kWidth>(shared.d_left, 16 * step, place.columns + 8 * tile, place.lane, d);
      multiply_pair(s[0][tile], s[0][tile + 1], k[0], d);
      multiply_pair(s[1][tile], s[1][tile + 1], k[1], d);
    }
  }
}

// Calls fn(row of S, column, first of two numbers) for all pairs of a warp.
template <typename Fn>
__device__ __forceinline__ void for_each_pair(const Place& place, State& s, const Fn& fn) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 32 * place.rows + 16 * part + place.lane / 4 + 8 * half;
        fn(row, place.column(tile), s[part][tile][2 * half], s[part][tile][2 * half + 1]);
      }
    }
  }
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
__global__ void __launch_bounds__(kThreads, 1) scan_chunks(const ChunkCall call) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  let_next_kernel_start();
  const DeltaShape& shape = call.rule.states.shape;
  const auto num_blocks = static_cast<int32_t>(shape.v_dim / kColumns);
  Head head;
  head.v_head = static_cast<int32_t>(blockIdx.x) / num_blocks;
  head.k_head = head.v_head / (shape.num_v_heads / shape.num_k_heads);
  head.block = static_cast<int32_t>(blockIdx.x) % num_blocks;
  const auto warp = static_cast<int>(threadIdx.x / kWarpThreads);
  const Place place{static_cast<int>(threadIdx.x % kWarpThreads), warp % 4,
                    warp / 4 * kWarpColumns};
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
    for_each_pair(place, s, [&](int row, int column, float& low, float& high) {
      const float2 pair = *reinterpret_cast<const float2*>(from + row * kColumns + column);
      low = pair.x;
      high = pair.y;
    });
  }
  const auto share_state = [&](int row, int column, float& low, float& high) {
    store_pair(&shared.s[row][column], low, high);
  };
  for_each_pair(place, s, share_state);
  Values values, next_values = {};
  load_values(call, head, place, walk.chunks.begin + walk.first * kDeltaChunk, values);
  for (int32_t i = walk.first; i < walk.end; ++i) {
    const Stage& stage = shared.stages[(i - walk.first) % 2];
    const int32_t begin = walk.chunks.begin + i * kDeltaChunk;
    wait_for_copies();
    __syncthreads();  // the stage and S are here, and nobody reads the other stage
    if (i + 1 < walk.end) {
      copy_stage(call, head, first_slot + i + 1, shared.stages[(i + 1 - walk.first) % 2]);
      load_values(call, head, place, begin + kDeltaChunk, next_values);
    }
    Sixteen queries = {};
    make_rest(place, values, stage, shared, queries);
    __syncthreads();  // R is here, and S has been read
    make_delta(place, stage, shared);
    __syncthreads();  // D is here
    write_out(call, head, place, begin, stage, shared, queries);
    step_state(place, stage, shared, s);
    for_each_pair(place, s, share_state);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      values[tile][0] = next_values[tile][0];
      values[tile][1] = next_values[tile][1];
    }
  }
  float* to = matrix_in(call.rule.states, part.to, head.v_head) + offset;
  for_each_pair(place, s, [&](int row, int column, float& low, float& high) {
    *reinterpret_cast<float2*>(to + row * kColumns + column) = {low, high};
  });
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
