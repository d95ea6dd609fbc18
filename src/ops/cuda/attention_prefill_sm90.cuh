// Prefill attention for Hopper: the kernel's body; attention_prefill_sm90_d*.cu instantiate it.
//
// Bound: tensor-core FLOP/s. A CTA holds 128 packed rows, 64 for each of two consumer warpgroups; a
// producer warp brings tiles of K and V through the copy engine, two stages deep. A warpgroup
// overlaps the softmax of tile i with its own product P V of tile i - 1, and the two take turns
// with the tensor cores (docs/kernels/cuda_attention.md has the theory and the figures).
// Measured share: see there. Compiled for sm_90a only.
#pragma once

#include <cuda.h>

#include "ops/cuda/attention_fragment.cuh"
#include "ops/cuda/attention_prefill_sm90.h"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda::sm90 {

template <int kHeadDimValue, int kTileTokensValue>
struct Config {
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kTileTokens = kTileTokensValue;
  static constexpr int kStages = 2;
  static constexpr int kGroupRows = 64;  // rows of a consumer warpgroup
  static constexpr int kNumConsumers = 2;
  static constexpr int kNumRows = kGroupRows * kNumConsumers;
  static constexpr int kNumThreads = 128 * (1 + kNumConsumers);
  static constexpr int kNumPanels = kHeadDim / 64;  // panels of 64 channels, 128 bytes a row
  static constexpr int kQueryPanelBytes = kGroupRows * kSwizzleRowBytes;
  static constexpr int kPanelBytes = kTileTokens * kSwizzleRowBytes;
  static constexpr int kTileBytes = kNumPanels * kPanelBytes;  // of K, and of V
  // 64 K registers: 240 * 256 + 24 * 128 threads. Accumulators take 64 + 64, weights 32.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
};

template <typename C>
struct alignas(1024) Shared {
  std::byte q[C::kNumConsumers][C::kNumPanels * C::kQueryPanelBytes];
  std::byte k[C::kStages][C::kTileBytes];
  std::byte v[C::kStages][C::kTileBytes];
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  uint64_t v_full[C::kStages], v_empty[C::kStages];
};

// Named barriers: 1 and 2 are the consumers' turns, 3 and 4 are theirs alone.
inline constexpr int kTurnBarrier = 1;
inline constexpr int kGroupBarrier = 3;

// Where tile i is in the ring of stages.
template <typename C>
struct Stage {
  int index;
  uint32_t parity;
  __device__ explicit Stage(int tile) : index(tile % C::kStages), parity(tile / C::kStages & 1) {}
};

// ---- Producer: one thread.

template <typename C>
__device__ __forceinline__ void copy_tile(const CUtensorMap* map, uint32_t destination,
                                          uint32_t barrier, int token, int plane, int block) {
  barrier_arrive_expecting(barrier, C::kTileBytes);
#pragma unroll
  for (int panel = 0; panel < C::kNumPanels; ++panel) {
    copy_box(destination + panel * C::kPanelBytes, map, barrier, panel * 64, token, plane, block);
  }
}

template <typename C>
__device__ __forceinline__ void produce(const PrefillParams& p, const CUtensorMap* map,
                                        const PrefillTile& tile, Shared<C>& shared,
                                        int num_kv_tiles) {
  const int32_t* table = p.block_table + static_cast<int64_t>(tile.seq) * p.max_blocks;
  const int tiles_per_block = p.block_tokens / C::kTileTokens;
  int block_entry = 0;
  int tile_in_block = 0;
  int next_block = num_kv_tiles > 0 ? table[0] : 0;
  for (int i = 0; i < num_kv_tiles; ++i) {
    const int block = next_block;
    const int token = tile_in_block * C::kTileTokens;
    if (++tile_in_block == tiles_per_block) {
      tile_in_block = 0;
      ++block_entry;
      // Read ahead of the waits below, which hide its latency.
      if (i + 1 < num_kv_tiles) next_block = table[block_entry];
    }
    const Stage<C> stage(i);
    // The first round finds every stage empty: the phase before the first has parity 1.
    barrier_wait(shared_address(&shared.k_empty[stage.index]), stage.parity ^ 1);
    copy_tile<C>(map, shared_address(shared.k[stage.index]),
                 shared_address(&shared.k_full[stage.index]), token, 2 * tile.kv_head, block);
    barrier_wait(shared_address(&shared.v_empty[stage.index]), stage.parity ^ 1);
    copy_tile<C>(map, shared_address(shared.v[stage.index]),
                 shared_address(&shared.v_full[stage.index]), token, 2 * tile.kv_head + 1, block);
  }
}

// ---- Consumers: one warpgroup each.

// Brings the warpgroup's 64 rows of q to shared memory, swizzled as the copy engine would; rows
// behind the last are 0. Ordinary loads, since packed rows are no box when group is odd.
template <typename C>
__device__ __forceinline__ void load_queries(const PrefillParams& p, const PrefillTile& tile,
                                             int first_row, int thread, std::byte* q) {
  constexpr int kChunks = C::kHeadDim / 8;  // of 16 bytes
  constexpr int kRowsAtOnce = 128 / kChunks;
  const int chunk = thread % kChunks;
#pragma unroll
  for (int i = 0; i < C::kGroupRows / kRowsAtOnce; ++i) {
    const int row = thread / kChunks + i * kRowsAtOnce;
    const int64_t head_row = head_row_of(p, tile, first_row + row);
    uint4 value = make_uint4(0, 0, 0, 0);
    if (head_row >= 0) {
      value = *reinterpret_cast<const uint4*>(p.q + head_row * C::kHeadDim + chunk * 8);
    }
    std::byte* panel = q + chunk / 8 * C::kQueryPanelBytes;
    const int offset = row * kSwizzleRowBytes + ((chunk % 8) ^ (row % 8)) * 16;
    *reinterpret_cast<uint4*>(panel + offset) = value;
  }
  shared_write_fence();
}

// Issues s = q k^T of one tile; s is valid after a wait.
template <typename C>
__device__ __forceinline__ void issue_scores(uint32_t q, uint32_t k,
                                             float (&s)[C::kTileTokens / 2]) {
  pin_registers(s);
  wgmma_fence();
  const uint64_t q_matrix = matrix_descriptor(q, 16, kSwizzleUnitBytes);
  const uint64_t k_matrix = matrix_descriptor(k, 16, kSwizzleUnitBytes);
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 16; ++step) {
    const int panel = step / 4;
    const int in_row = step % 4 * 32;
    wgmma_scores(s, advanced(q_matrix, panel * C::kQueryPanelBytes + in_row),
                 advanced(k_matrix, panel * C::kPanelBytes + in_row), step > 0);
  }
  wgmma_commit();
}

// Issues o += weights v of one tile. V lies as [token][channel], the transposed form.
template <typename C>
__device__ __forceinline__ void issue_values(uint32_t (&weights)[C::kTileTokens / 4], uint32_t v,
                                             float (&o)[C::kHeadDim / 2]) {
  pin_registers(o);
  pin_registers(weights);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < C::kTileTokens / 16; ++step) {
    wgmma_values(
        o, weights + 4 * step,
        matrix_descriptor(v + step * 2 * kSwizzleUnitBytes, C::kPanelBytes, kSwizzleUnitBytes));
  }
  wgmma_commit();
}

// Writes zeros over the values of tokens that are not there: their weight is 0, but 0 * NaN is NaN.
// Both warpgroups may do it to one tile: they write the same zeros.
template <typename C>
__device__ __forceinline__ void clear_values(std::byte* v, int num_tokens, int thread) {
  for (int token = num_tokens; token < C::kTileTokens; ++token) {
    for (int chunk = thread; chunk < C::kHeadDim / 8; chunk += 128) {
      // A swizzle permutes chunks inside a row: every chunk of the row becomes 0 anyway.
      std::byte* row = v + chunk / 8 * C::kPanelBytes + token * kSwizzleRowBytes;
      *reinterpret_cast<uint4*>(row + chunk % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  shared_write_fence();
}

// One consumer warpgroup: what its members share.
template <typename C>
struct Consumer {
  const PrefillParams& p;
  Shared<C>& shared;
  int index;   // which of the two
  int thread;  // 0 .. 127
  int kv_begin;

  __device__ void release(uint64_t& empty) const {
    if (thread % 32 == 0) barrier_arrive(shared_address(&empty));
  }
  __device__ void wait(uint64_t& full, const Stage<C>& stage) const {
    barrier_wait(shared_address(&full), stage.parity);
  }
  // The warpgroups take turns at issuing products, so that one's softmax runs under the other's.
  __device__ void wait_for_turn() const { named_barrier_sync(kTurnBarrier + index, 256); }
  __device__ void pass_turn() const { named_barrier_arrive(kTurnBarrier + (index ^ 1), 256); }
  // All four warps are here.
  __device__ void meet() const { named_barrier_sync(kGroupBarrier + index, 128); }
};

// Tile 0: scores and their softmax; nothing older to overlap with.
template <typename C>
__device__ __forceinline__ void first_tile(const Consumer<C>& self, RowPair& rows,
                                           float (&o)[C::kHeadDim / 2],
                                           uint32_t (&weights)[C::kTileTokens / 4]) {
  float s[C::kTileTokens / 2];
  float alpha[2];
  self.wait(self.shared.k_full[0], Stage<C>(0));
  issue_scores<C>(shared_address(self.shared.q[self.index]), shared_address(self.shared.k[0]), s);
  wgmma_wait<0>();
  pin_registers(s);
  self.release(self.shared.k_empty[0]);
  mask_scores<C::kTileTokens>(rows, self.kv_begin, self.thread % 32, s);
  softmax_tile<C::kTileTokens>(self.p.scale, rows, s, alpha);
  scale_accumulator<C::kHeadDim>(alpha, o);
  pack_weights<C::kTileTokens>(s, weights);
}

// Tile i >= 1: its scores and softmax, under which o += P V of tile i - 1 runs.
template <typename C, bool kMasked>
__device__ __forceinline__ void next_tile(const Consumer<C>& self, int i, bool pass_turn,
                                          RowPair& rows, float (&o)[C::kHeadDim / 2],
                                          uint32_t (&weights)[C::kTileTokens / 4]) {
  float s[C::kTileTokens / 2];
  float alpha[2];
  const Stage<C> stage(i);
  const Stage<C> before(i - 1);
  self.wait(self.shared.k_full[stage.index], stage);
  self.wait_for_turn();
  issue_scores<C>(shared_address(self.shared.q[self.index]),
                  shared_address(self.shared.k[stage.index]), s);
  self.wait(self.shared.v_full[before.index], before);
  issue_values<C>(weights, shared_address(self.shared.v[before.index]), o);
  if (pass_turn) self.pass_turn();

  wgmma_wait<1>();
  pin_registers(s);
  self.release(self.shared.k_empty[stage.index]);
  if constexpr (kMasked) {
    mask_scores<C::kTileTokens>(rows, self.kv_begin + i * C::kTileTokens, self.thread % 32, s);
  }
  softmax_tile<C::kTileTokens>(self.p.scale, rows, s, alpha);
  finish_before(__fadd_rn(rows.sum[0], rows.sum[1]));
  wgmma_wait<0>();
  pin_registers(o);
  pin_registers(weights);
  self.release(self.shared.v_empty[before.index]);
  scale_accumulator<C::kHeadDim>(alpha, o);
  pack_weights<C::kTileTokens>(s, weights);
}

// The last product P V.
template <typename C>
__device__ __forceinline__ void last_values(const Consumer<C>& self, int tile, int num_tokens,
                                            float (&o)[C::kHeadDim / 2],
                                            uint32_t (&weights)[C::kTileTokens / 4]) {
  const Stage<C> stage(tile);
  self.wait(self.shared.v_full[stage.index], stage);
  if (num_tokens < C::kTileTokens) {
    clear_values<C>(self.shared.v[stage.index], num_tokens, self.thread);
    self.meet();
  }
  issue_values<C>(weights, shared_address(self.shared.v[stage.index]), o);
  wgmma_wait<0>();
  pin_registers(o);
  pin_registers(weights);
  self.release(self.shared.v_empty[stage.index]);
}

// Passes by a tile that only the other warpgroup needs.
template <typename C>
__device__ __forceinline__ void skip_tile(const Consumer<C>& self, int i, bool pass_turn) {
  const Stage<C> stage(i);
  if (i > 0) {
    self.wait_for_turn();
    if (pass_turn) self.pass_turn();
  }
  self.wait(self.shared.k_full[stage.index], stage);
  self.release(self.shared.k_empty[stage.index]);
  self.wait(self.shared.v_full[stage.index], stage);
  self.release(self.shared.v_empty[stage.index]);
}

template <typename C>
__device__ __forceinline__ void consume(const PrefillParams& p, const PrefillTile& tile,
                                        Shared<C>& shared, int num_kv_tiles) {
  // The shuffle tells the compiler that a warp agrees on it, so that addresses stay uniform.
  const int index = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128 - 1, 0);
  const int thread = threadIdx.x % 128;
  const Consumer<C> self{p, shared, index, thread, tile.kv_begin};
  const int first_row = tile.first_row + index * C::kGroupRows;
  const int last_row = first_row + C::kGroupRows - 1;

  load_queries<C>(p, tile, first_row, thread, shared.q[index]);
  float o[C::kHeadDim / 2];
  uint32_t weights[C::kTileTokens / 4];
  RowPair rows = make_row_pair(p, tile, first_row + thread / 32 * 16, thread % 32);
  load_accumulator<C::kHeadDim>(p, tile, rows, thread % 32, o);
  self.meet();

  // Tiles that this warpgroup needs, and how many of them all of its rows see whole.
  const int num_own =
      first_row < tile.num_rows ? tile.num_kv_tiles(last_row, p.group, C::kTileTokens) : 0;
  const int num_whole = (tile.limit(first_row, p.group) - tile.kv_begin) / C::kTileTokens;
  // The second warpgroup gives the first its first turn and takes no turn after the last.
  const auto passes = [&](int i) { return index == 0 || i + 1 < num_kv_tiles; };
  if (index == 1 && num_kv_tiles > 1) self.pass_turn();
  int i = 0;
  if (num_own > 0) {
    first_tile<C>(self, rows, o, weights);
    for (i = 1; i < num_whole; ++i) next_tile<C, false>(self, i, passes(i), rows, o, weights);
    for (; i < num_own; ++i) next_tile<C, true>(self, i, passes(i), rows, o, weights);
    const int last_begin = tile.kv_begin + (num_own - 1) * C::kTileTokens;
    last_values<C>(self, num_own - 1, tile.kv_end - last_begin, o, weights);
  }
  for (; i < num_kv_tiles; ++i) skip_tile<C>(self, i, passes(i));
  store_rows<C::kHeadDim>(p, rows, thread % 32, o);
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillParams p,
                   const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ std::byte shared_bytes[];
  // The runtime promises 16-byte alignment; the swizzle needs 1024.
  const uint32_t misaligned = shared_address(shared_bytes) % 1024;
  auto& shared = *reinterpret_cast<Shared<C>*>(shared_bytes + (1024 - misaligned) % 1024);
  const PrefillTile tile = tile_of_block(p, blockIdx.x, C::kNumRows);
  if (tile.first_row >= tile.num_rows) return;
  const int num_kv_tiles =
      tile.num_kv_tiles(tile.first_row + C::kNumRows - 1, p.group, C::kTileTokens);

  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(shared_address(&shared.k_full[i]), 1);
      barrier_init(shared_address(&shared.v_full[i]), 1);
      barrier_init(shared_address(&shared.k_empty[i]), 4 * C::kNumConsumers);
      barrier_init(shared_address(&shared.v_empty[i]), 4 * C::kNumConsumers);
    }
    barrier_init_fence();
    prefetch_tensor_map(&kv_map);
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce<C>(p, &kv_map, tile, shared, num_kv_tiles);
  } else {
    take_registers<C::kConsumerRegisters>();
    consume<C>(p, tile, shared, num_kv_tiles);
  }
}

// The dynamic shared memory of the kernel, with room to align it.
template <typename C>
constexpr int shared_bytes() {
  return sizeof(Shared<C>) + 1024;
}

}  // namespace sluice::cuda::sm90
