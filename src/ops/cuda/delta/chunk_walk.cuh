// What the two kernels that walk over chunks share: where a lane's numbers are, and how they come
// and go.
//
// Used by chunk_scan.cu and, on Hopper, chunk_scan_sm90.cu. All is computed transposed, with 16
// columns of a head as the rows of a warp's products: the sums of one product then are the left
// operand of the next, so S, R and D never leave the registers of their warp. Thread rule: device
// code, whole warps.
#pragma once

#include "ops/cuda/delta/chunks.cuh"
#include "ops/cuda/delta/products.cuh"

namespace sluice::cuda::delta {

inline constexpr int kScanThreads = 128;
inline constexpr int kRowTiles = kDeltaChunk / 8;   // of 8 rows of a chunk
inline constexpr int kStateTiles = kChunkDim / 8;   // of 8 rows of S
inline constexpr int kRowSteps = kDeltaChunk / 16;  // of products that sum over rows of a chunk
static_assert(kDeltaColumns == kScanThreads / kWarpThreads * 16, "a warp has 16 columns");

// Numbers of a lane = 4 g + c of a transposed matrix: of columns g and g + 8 of the warp, and rows
// 2 c and 2 c + 1 of each tile.
using OfRows = float[kRowTiles][4];
using State = float[kStateTiles][4];

// The left operands of products that sum over rows of a chunk, 16 at a time.
using LeftOfRows = uint32_t[kRowSteps][4];

// A lane's place in them.
struct Place {
  int lane;
  int first_column;  // of the warp, in the block

  __device__ int column(int e) const { return first_column + lane / 4 + e / 2 * 8; }
  __device__ int row(int tile, int e) const { return 8 * tile + lane % 4 * 2 + e % 2; }
};

__device__ inline Place place_of_thread() {
  return {static_cast<int>(threadIdx.x % kWarpThreads),
          static_cast<int>(threadIdx.x / kWarpThreads) * 16};
}

// Where the block's columns lie.
struct Head {
  int32_t v_head;
  int32_t k_head;
  int32_t block;  // of columns
};

// Of a grid whose x goes over the blocks of columns of all value heads.
__device__ inline Head head_of_block(const DeltaShape& shape) {
  const auto num_blocks = static_cast<int32_t>(shape.v_dim / kDeltaColumns);
  Head head;
  head.v_head = static_cast<int32_t>(blockIdx.x) / num_blocks;
  head.k_head = head.v_head / (shape.num_v_heads / shape.num_k_heads);
  head.block = static_cast<int32_t>(blockIdx.x) % num_blocks;
  return head;
}

// The chunks of the sequence that this launch computes, by index, and the slot that S comes from.
struct Walk {
  ChunkRange chunks;
  int32_t first = 0;
  int32_t end = 0;
  int32_t from = -1;

  __device__ bool is_empty() const { return first >= end; }
  __device__ int32_t row(int32_t index) const { return chunks.begin + index * kDeltaChunk; }
  __device__ int32_t slot(int32_t index) const { return slot_of_chunk(chunks.begin) + index; }
};

__device__ inline Walk walk_of(const ChunkCall& call, const SequencePart& part) {
  Walk walk;
  if (part.is_empty()) return walk;
  walk.chunks = chunks_of(part);
  const int32_t slot = walk.slot(0);
  walk.first = max(0, call.first_slot - slot);
  walk.end = min(walk.chunks.count, call.first_slot + call.num_slots - slot);
  const bool continues = walk.first > 0 || walk.chunks.begin > part.begin;
  walk.from = continues ? part.to : part.from;
  return walk;
}

// S of the block before the walk; zeros at position 0, where nothing is read.
__device__ inline void load_state(const DeltaStates& states, const Head& head, const Place& place,
                                  int32_t slot, State& s) {
  if (slot < 0) return;
  const float* from = matrix_in(states, slot, head.v_head) + states.shape.block_offset(head.block);
#pragma unroll
  for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[tile][e] = from[place.row(tile, e) * kDeltaColumns + place.column(e)];
    }
  }
}

__device__ inline void store_state(const DeltaStates& states, const Head& head, const Place& place,
                                   int32_t slot, const State& s) {
  float* to = matrix_in(states, slot, head.v_head) + states.shape.block_offset(head.block);
#pragma unroll
  for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[place.row(tile, e) * kDeltaColumns + place.column(e)] = s[tile][e];
    }
  }
}

// A number of each row of a lane: at rows 2 c and 2 c + 1 of each tile.
using RowFactors = float2[kRowTiles];

__device__ __forceinline__ void load_factors(const Place& place,
                                             const float (&of_rows)[kDeltaChunk],
                                             RowFactors& factors) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    factors[tile] = *reinterpret_cast<const float2*>(&of_rows[place.row(tile, 0)]);
  }
}

// numbers *= factors.
__device__ __forceinline__ void scale_rows(const RowFactors& factors, OfRows& numbers) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      numbers[tile][e] *= factors[tile].x;
      numbers[tile][e + 1] *= factors[tile].y;
    }
  }
}

// R, from V and, in its place, K S.
__device__ __forceinline__ void make_rest(const RowFactors& decay, const RowFactors& beta,
                                          const OfRows& v, OfRows& rest) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      rest[tile][e] = beta[tile].x * (v[tile][e] - decay[tile].x * rest[tile][e]);
      rest[tile][e + 1] = beta[tile].y * (v[tile][e + 1] - decay[tile].y * rest[tile][e + 1]);
    }
  }
}

// 16 rows of a transposed matrix as a left operand, rounded: two tiles of its numbers.
__device__ __forceinline__ void as_left(const float (&low)[4], const float (&high)[4],
                                        uint32_t (&left)[4]) {
  left[0] = pack_pair(low[0], low[1]);
  left[1] = pack_pair(low[2], low[3]);
  left[2] = pack_pair(high[0], high[1]);
  left[3] = pack_pair(high[2], high[3]);
}
template <int kSteps>
__device__ __forceinline__ void as_left(const float (&numbers)[2 * kSteps][4],
                                        uint32_t (&left)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    as_left(numbers[2 * step], numbers[2 * step + 1], left[step]);
  }
}

// S before K^T (left D) is added.
__device__ inline void decay_state(const ChunkGates& gates, State& s) {
  const float decay = gates.decay[kDeltaChunk - 1];
#pragma unroll
  for (int tile = 0; tile < kStateTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[tile][e] *= decay;
  }
}

}  // namespace sluice::cuda::delta
