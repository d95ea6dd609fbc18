// Prefill attention for Hopper: the kernel's body; attention_prefill_sm90_d*.cu instantiate it.
//
// Bound: tensor-core FLOP/s. A CTA holds 128 packed rows, 64 for each of two consumer warpgroups; a
// producer thread brings tiles of K and V through the copy engine, two stages deep. A warpgroup
// issues the scores of tile i together with P V of tile i - 1; while it works on the softmax, the
// other one's products have the tensor cores. Measured at head_dim 128, 16K to 64K tokens: 616 to
// 657 TFLOP/s, 90 to 96 % of a large matrix product in the same run (H200, 2026-11-21;
// docs/kernels/cuda_attention.md). Compiled for sm_90a only.
#pragma once

#include <cuda.h>

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/attention/prefill/sm90.h"
#include "ops/cuda/attention/prefill/sm90_items.cuh"
#include "ops/cuda/shared_copy.cuh"
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
  // Two buffers: the next tile's rows come while this one is worked on.
  std::byte q[2][C::kNumConsumers][C::kNumPanels * C::kQueryPanelBytes];
  std::byte k[C::kStages][C::kTileBytes];
  std::byte v[C::kStages][C::kTileBytes];
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  uint64_t v_full[C::kStages], v_empty[C::kStages];
};

// Named barriers: 1 and 2 are the consumers' turns, 3 and 4 are theirs alone.
inline constexpr int kTurnBarrier = 1;
inline constexpr int kGroupBarrier = 3;

// Where the i-th KV tile of the CTA is in the ring of stages.
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

// Brings the KV tiles of one tile of rows; the first is the CTA's `step`-th.
template <typename C, bool kSplits>
__device__ __forceinline__ void produce(const PrefillParams& p, const CUtensorMap* map,
                                        const Item& tile, Shared<C>& shared, int num_kv_tiles,
                                        int step) {
  const int32_t* table = p.block_table + static_cast<int64_t>(tile.seq) * p.max_blocks;
  const int tiles_per_block = p.block_tokens / C::kTileTokens;
  int block_entry = kSplits ? tile.first_block : 0;
  int tile_in_block = 0;
  int next_block = num_kv_tiles > 0 ? table[block_entry] : 0;
  for (int i = 0; i < num_kv_tiles; ++i) {
    const int block = next_block;
    const int token = tile_in_block * C::kTileTokens;
    if (++tile_in_block == tiles_per_block) {
      tile_in_block = 0;
      ++block_entry;
      // Read ahead of the waits below, which hide its latency.
      if (i + 1 < num_kv_tiles) next_block = table[block_entry];
    }
    const Stage<C> stage(step + i);
    // The first round finds every stage empty: the phase before the first has parity 1.
    barrier_wait(shared_address(&shared.k_empty[stage.index]), stage.parity ^ 1);
    copy_tile<C>(map, shared_address(shared.k[stage.index]),
                 shared_address(&shared.k_full[stage.index]), token, 2 * tile.kv_head, block);
    barrier_wait(shared_address(&shared.v_empty[stage.index]), stage.parity ^ 1);
    copy_tile<C>(map, shared_address(shared.v[stage.index]),
                 shared_address(&shared.v_full[stage.index]), token, 2 * tile.kv_head + 1, block);
  }
}

template <typename C, bool kSplits>
__device__ __forceinline__ void produce_all(const PrefillParams& p, const CUtensorMap* map,
                                            Shared<C>& shared) {
  const ItemRange range(p);
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const Item tile = item_at<kSplits>(p, i);
    const int count = tile.num_kv_tiles(tile.first_row, C::kNumRows, p.group, C::kTileTokens);
    produce<C, kSplits>(p, map, tile, shared, count, step);
    step += count;
  }
}

// ---- Consumers: one warpgroup each.

// Begins to bring the warpgroup's 64 rows of q to shared memory, swizzled as the copy engine would;
// rows after the last are 0. Not by the copy engine, since packed rows are no box when group is
// odd.
template <typename C>
__device__ __forceinline__ void copy_queries(const PrefillParams& p, const PrefillTile& tile,
                                             int first_row, int thread, std::byte* q) {
  constexpr int kChunks = C::kHeadDim / 8;  // of 16 bytes
  constexpr int kRowsAtOnce = 128 / kChunks;
  const int chunk = thread % kChunks;
#pragma unroll
  for (int i = 0; i < C::kGroupRows / kRowsAtOnce; ++i) {
    const int row = thread / kChunks + i * kRowsAtOnce;
    const int64_t head_row = head_row_of(p, tile, first_row + row);
    const uint16_t* source = p.q + max(head_row, int64_t{0}) * C::kHeadDim + chunk * 8;
    copy_16(q + chunk / 8 * C::kQueryPanelBytes + row * kSwizzleRowBytes +
                ((chunk % 8) ^ (row % 8)) * 16,
            source, head_row >= 0);
  }
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

// One consumer warpgroup at one tile of rows: what its members share.
template <typename C>
struct Consumer {
  const PrefillParams& p;
  Shared<C>& shared;
  int index;   // which of the two
  int thread;  // 0 .. 127
  uint32_t q;  // its rows of q
  int kv_begin;
  int num_kv_tiles;  // that the CTA brings
  int step;          // which of the CTA's KV tiles is the first of them

  __device__ Stage<C> stage(int i) const { return Stage<C>(step + i); }
  __device__ void release(uint64_t& empty) const {
    if (thread % 32 == 0) barrier_arrive(shared_address(&empty));
  }
  __device__ void wait(uint64_t& full, const Stage<C>& at) const {
    barrier_wait(shared_address(&full), at.parity);
  }
  // The warpgroups take turns at issuing products, so that one's softmax runs under the other's.
  // The second gives the first its first turn (in `attend`) and none after the last.
  __device__ void wait_for_turn() const { named_barrier_sync(kTurnBarrier + index, 256); }
  __device__ void give_turn() const { named_barrier_arrive(kTurnBarrier + (index ^ 1), 256); }
  __device__ void pass_turn(int i) const {
    if (index == 0 || i + 1 < num_kv_tiles) give_turn();
  }
  // All four warps are here.
  __device__ void meet() const { named_barrier_sync(kGroupBarrier + index, 128); }
};

// Tile 0: scores and their softmax; nothing older to overlap with. `mask(i, s)` gives the scores of
// tile i that a row may not see the value -inf.
template <typename C, typename Mask>
__device__ __forceinline__ void first_tile(const Consumer<C>& self, const Mask& mask, RowPair& rows,
                                           float (&o)[C::kHeadDim / 2],
                                           uint32_t (&weights)[C::kTileTokens / 4]) {
  float s[C::kTileTokens / 2];
  float alpha[2];
  const Stage<C> stage = self.stage(0);
  self.wait(self.shared.k_full[stage.index], stage);
  issue_scores<C>(self.q, shared_address(self.shared.k[stage.index]), s);
  wgmma_wait<0>();
  pin_registers(s);
  self.release(self.shared.k_empty[stage.index]);
  mask(0, s);
  softmax_tile<C::kTileTokens>(self.p.scale, rows, s, alpha);
  scale_accumulator<C::kHeadDim>(alpha, o);
  pack_weights<C::kTileTokens>(s, weights);
}

// Tile i >= 1: its scores and softmax, under which o += P V of tile i - 1 runs.
template <typename C, typename Mask>
__device__ __forceinline__ void next_tile(const Consumer<C>& self, int i, const Mask& mask,
                                          RowPair& rows, float (&o)[C::kHeadDim / 2],
                                          uint32_t (&weights)[C::kTileTokens / 4]) {
  float s[C::kTileTokens / 2];
  float alpha[2];
  const Stage<C> stage = self.stage(i);
  const Stage<C> before = self.stage(i - 1);
  self.wait(self.shared.k_full[stage.index], stage);
  self.wait_for_turn();
  issue_scores<C>(self.q, shared_address(self.shared.k[stage.index]), s);
  self.wait(self.shared.v_full[before.index], before);
  issue_values<C>(weights, shared_address(self.shared.v[before.index]), o);
  self.pass_turn(i);

  wgmma_wait<1>();
  pin_registers(s);
  self.release(self.shared.k_empty[stage.index]);
  mask(i, s);
  softmax_tile<C::kTileTokens>(self.p.scale, rows, s, alpha);
  wgmma_wait<0>();
  pin_registers(o);
  pin_registers(weights);
  self.release(self.shared.v_empty[before.index]);
  scale_accumulator<C::kHeadDim>(alpha, o);
  pack_weights<C::kTileTokens>(s, weights);
}

// The last product P V.
template <typename C>
__device__ __forceinline__ void last_values(const Consumer<C>& self, int i, int num_tokens,
                                            float (&o)[C::kHeadDim / 2],
                                            uint32_t (&weights)[C::kTileTokens / 4]) {
  const Stage<C> stage = self.stage(i);
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
__device__ __forceinline__ void skip_tile(const Consumer<C>& self, int i) {
  const Stage<C> stage = self.stage(i);
  if (i > 0) {
    self.wait_for_turn();
    self.pass_turn(i);
  }
  self.wait(self.shared.k_full[stage.index], stage);
  self.release(self.shared.k_empty[stage.index]);
  self.wait(self.shared.v_full[stage.index], stage);
  self.release(self.shared.v_empty[stage.index]);
}

// Where a warpgroup's registers lie between the two parts of a tile: 16 bytes a thread, side by
// side; the accumulator, then maxima and sums.
template <typename C>
constexpr int kHandedQuads = handed_over_bytes(C::kHeadDim) /
                             (C::kNumConsumers * 128 * sizeof(float4));

template <typename C>
__device__ __forceinline__ float4* handed_over(const Consumer<C>& self, const Item& tile) {
  const int64_t place = tile.slot * C::kNumConsumers + self.index;
  return self.p.handed_over + place * kHandedQuads<C> * 128 + self.thread;
}
template <typename C>
__device__ __forceinline__ uint32_t* is_handed(const Consumer<C>& self, const Item& tile) {
  return self.p.is_handed + tile.slot * C::kNumConsumers + self.index;
}

template <typename C>
__device__ __forceinline__ void hand_over(const Consumer<C>& self, const Item& tile,
                                          const RowPair& rows, const float (&o)[C::kHeadDim / 2]) {
  float4* to = handed_over(self, tile);
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 8; ++i) {
    to[i * 128] = {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]};
  }
  to[C::kHeadDim / 8 * 128] = {rows.max[0], rows.max[1], rows.sum[0], rows.sum[1]};
  self.meet();
  if (self.thread != 0) return;
  __threadfence();
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(is_handed(self, tile)) : "memory");
}

// Waits for the first part. Its CTA has begun before this one: it has the lower index, and GPUs
// begin CTAs in that order (CUDA does not promise it, but the scans of CUB rely on it as well).
template <typename C>
__device__ __forceinline__ void take_over(const Consumer<C>& self, const Item& tile, RowPair& rows,
                                          float (&o)[C::kHeadDim / 2]) {
  if (self.thread == 0) {
    uint32_t is_there = 0;
    while (is_there == 0) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(is_there)
                   : "l"(is_handed(self, tile))
                   : "memory");
    }
    *is_handed(self, tile) = 0;
  }
  self.meet();
  const float4* from = handed_over(self, tile);
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 8; ++i) {
    const float4 quad = __ldcg(from + i * 128);
    o[4 * i] = quad.x;
    o[4 * i + 1] = quad.y;
    o[4 * i + 2] = quad.z;
    o[4 * i + 3] = quad.w;
  }
  const float4 of_rows = __ldcg(from + C::kHeadDim / 8 * 128);
  rows.max[0] = of_rows.x;
  rows.max[1] = of_rows.y;
  rows.sum[0] = of_rows.z;
  rows.sum[1] = of_rows.w;
}

// One tile of rows; its q is in shared memory.
template <typename C, bool kSplits>
__device__ __forceinline__ void attend(const Consumer<C>& self, const Item& tile) {
  const int lane = self.thread % 32;
  const int first_row = tile.first_row + self.index * C::kGroupRows;
  float o[C::kHeadDim / 2];
  uint32_t weights[C::kTileTokens / 4];
  RowPair rows = make_row_pair(self.p, tile, first_row + self.thread / 32 * 16, lane);
  load_accumulator<C::kHeadDim>(self.p, tile, rows, lane, o);
  if constexpr (kSplits) {
    if (tile.part == Part::kSecond) take_over<C>(self, tile, rows, o);
  }

  // Tiles that this warpgroup needs, and how many of them all of its rows see whole.
  const int num_own = tile.num_kv_tiles(first_row, C::kGroupRows, self.p.group, C::kTileTokens);
  const int num_whole = (tile.limit(first_row, self.p.group) - tile.kv_begin) / C::kTileTokens;
  if (self.index == 1 && self.num_kv_tiles > 1) self.give_turn();
  int i = 0;
  if (num_own > 0) {
    const auto mask = [&](int at, float(&s)[C::kTileTokens / 2]) {
      mask_scores<C::kTileTokens>(rows, self.kv_begin + at * C::kTileTokens, lane, s);
    };
    const auto sees_all = [](int, float(&)[C::kTileTokens / 2]) {};
    first_tile<C>(self, mask, rows, o, weights);
    for (i = 1; i < num_whole; ++i) next_tile<C>(self, i, sees_all, rows, o, weights);
    for (; i < num_own; ++i) next_tile<C>(self, i, mask, rows, o, weights);
    const int last_begin = tile.kv_begin + (num_own - 1) * C::kTileTokens;
    last_values<C>(self, num_own - 1, tile.kv_end - last_begin, o, weights);
  }
#pragma unroll 1
  for (; i < self.num_kv_tiles; ++i) skip_tile<C>(self, i);
  if constexpr (kSplits) {
    if (tile.part == Part::kFirst) return hand_over<C>(self, tile, rows, o);
  }
  store_rows<C::kHeadDim>(self.p, rows, lane, o);
}

template <typename C, bool kSplits>
__device__ __forceinline__ void consume_all(const PrefillParams& p, Shared<C>& shared) {
  // The shuffle tells the compiler that a warp agrees on it, so that addresses stay uniform.
  const int index = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128 - 1, 0);
  const int thread = threadIdx.x % 128;
  const auto begin_queries = [&](const PrefillTile& tile, int buffer) {
    copy_queries<C>(p, tile, tile.first_row + index * C::kGroupRows, thread,
                    shared.q[buffer][index]);
  };
  const ItemRange range(p);
  Item tile = item_at<kSplits>(p, range.begin);
  begin_queries(tile, 0);
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const int buffer = (i - range.begin) % 2;
    const int count = tile.num_kv_tiles(tile.first_row, C::kNumRows, p.group, C::kTileTokens);
    const Consumer<C> self{
        p,     shared, index, thread, shared_address(shared.q[buffer][index]), tile.kv_begin,
        count, step};
    wait_for_copies();
    shared_write_fence();
    self.meet();  // q is here, and no thread reads the other buffer any more
    Item next = tile;
    if (i + 1 < range.end) {
      next = item_at<kSplits>(p, i + 1);
      begin_queries(next, buffer ^ 1);
    }
    const bool is_part = kSplits && tile.part != Part::kWhole;
    if (count > 0 || is_part || !state_stays(p, tile)) attend<C, kSplits>(self, tile);
    tile = next;
    step += count;
  }
}

// Prepares the barriers, by all threads of the CTA.
template <typename C>
__device__ __forceinline__ void begin_pipeline(Shared<C>& shared, const CUtensorMap* kv_map) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(shared_address(&shared.k_full[i]), 1);
      barrier_init(shared_address(&shared.v_full[i]), 1);
      barrier_init(shared_address(&shared.k_empty[i]), 4 * C::kNumConsumers);
      barrier_init(shared_address(&shared.v_empty[i]), 4 * C::kNumConsumers);
    }
    barrier_init_fence();
    prefetch_tensor_map(kv_map);
  }
  __syncthreads();
}

// The CTA's shared memory. The runtime promises 16-byte alignment; the swizzle needs 1024.
template <typename SharedType>
__device__ __forceinline__ SharedType& aligned_shared(std::byte* bytes) {
  const uint32_t misaligned = shared_address(bytes) % 1024;
  return *reinterpret_cast<SharedType*>(bytes + (1024 - misaligned) % 1024);
}

template <typename C, bool kSplits>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillParams p,
                   const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = aligned_shared<Shared<C>>(shared_bytes);
  begin_pipeline<C>(shared, &kv_map);
  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce_all<C, kSplits>(p, &kv_map, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    consume_all<C, kSplits>(p, shared);
  }
}

// The dynamic shared memory of a kernel, with room to align it.
template <typename SharedType>
constexpr int shared_bytes() {
  return sizeof(SharedType) + 1024;
}

}  // namespace sluice::cuda::sm90
