// Prefill attention for Hopper: the kernel; sm90_launch.cuh instantiates it.
//
// Bound: tensor-core FLOP/s. Tile: a CTA holds 128 packed rows, 64 for each of two consumer
// warpgroups; a producer thread brings tiles of K and V through the copy engine, two stages deep. A
// warpgroup issues the scores of tile i together with P V of tile i - 1; during its softmax the
// tensor cores compute the products of the other one. Share at head_dim 128 and 16K to 64K tokens:
// 90 to 96 % of a large matrix product (docs/kernels/cuda_attention.md). Compiled for sm_90a only.
// Thread rule: device code.
#pragma once

#include "ops/cuda/attention/prefill/sm90.h"
#include "ops/cuda/attention/prefill/sm90_consumer.cuh"
#include "ops/cuda/attention/prefill/sm90_items.cuh"
#include "ops/cuda/attention/prefill/sm90_pipeline.cuh"

namespace sluice::cuda::sm90 {

// ---- Launch order.

// Takes the CTA's place in launch order: the number of CTAs that have begun before it. CUDA does
// not promise that CTAs begin in the order of their index, so with the index a CTA could wait for
// one that has not begun. The counter wraps to 0 at the last CTA. Call it before begin_pipeline.
template <typename C>
__device__ __forceinline__ void take_ticket(const PrefillParams& p, Shared<C>& shared) {
  if (threadIdx.x == 0) shared.ticket = atomicInc(p.num_begun, gridDim.x - 1);
}

// The CTA's place in launch order; its index will do where no CTA waits for another.
template <bool kSplits, typename C>
__device__ __forceinline__ int cta_index(const Shared<C>& shared) {
  if constexpr (kSplits) return static_cast<int>(shared.ticket);
  return static_cast<int>(blockIdx.x);
}

// ---- Producer: one thread.

// Brings K and V of the CTA's `step`-th KV tile, each as soon as its stage is empty.
template <typename C>
__device__ __forceinline__ void bring_tile(const CUtensorMap* map, Shared<C>& shared, int step,
                                           int kv_head, int token, int block) {
  const Stage<C> stage(step);
  // The first round finds every stage empty: the phase before the first has parity 1.
  barrier_wait(shared_address(&shared.k_empty[stage.index]), stage.parity ^ 1);
  copy_tile<C>(map, shared_address(shared.k[stage.index]),
               shared_address(&shared.k_full[stage.index]), token, 2 * kv_head, block);
  barrier_wait(shared_address(&shared.v_empty[stage.index]), stage.parity ^ 1);
  copy_tile<C>(map, shared_address(shared.v[stage.index]),
               shared_address(&shared.v_full[stage.index]), token, 2 * kv_head + 1, block);
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
    bring_tile<C>(map, shared, step + i, tile.kv_head, token, block);
  }
}

// Brings the KV tiles of all items of the CTA, in the order in which the consumers attend them.
template <typename C, bool kSplits>
__device__ __forceinline__ void produce_all(const PrefillParams& p, const CUtensorMap* map,
                                            Shared<C>& shared) {
  const ItemRange range(p, cta_index<kSplits>(shared));
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const Item tile = item_at<kSplits>(p, i);
    const int count = tile.num_kv_tiles(tile.first_row, C::kNumRows, p.group, C::kTileTokens);
    produce<C, kSplits>(p, map, tile, shared, count, step);
    step += count;
  }
}

// ---- Consumers: one warpgroup each.

// ---- Split tiles: registers from the first part's CTA to the second's.

// Quads of 16 bytes that each thread of a warpgroup leaves between the two parts of a tile: the
// accumulator, then maxima and sums. Threads lie side by side, so that accesses are coalesced.
template <typename C>
constexpr int kHandedQuads = handed_over_bytes(C::kHeadDim) /
                             (C::kNumConsumers * 128 * sizeof(float4));

template <typename C>
__device__ __forceinline__ float4* handed_over(const Consumer<C>& self, const Item& tile) {
  const int64_t place = tile.slot * C::kNumConsumers + self.index;
  return self.p.handed_over + place * kHandedQuads<C> * 128 + self.thread;
}
// The flag that says that the warpgroup's registers are complete in memory.
template <typename C>
__device__ __forceinline__ uint32_t* is_handed(const Consumer<C>& self, const Item& tile) {
  return self.p.is_handed + tile.slot * C::kNumConsumers + self.index;
}

// Writes the registers, then releases the flag: the fence makes the writes of all threads, ordered
// by the barrier, visible before it.
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

// Waits for the first part, loads its registers and resets the flag. No deadlock: the first part's
// CTA took an earlier ticket, so it runs already, and first parts wait for nothing.
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

// Where the walk over an item needs other queries.
template <typename C>
__device__ __forceinline__ auto borders_of(const PrefillParams& p, const Item& tile,
                                           int32_t first_row) {
  if constexpr (C::kOverSet) {
    return SetZoneBorders(p, tile, first_row);
  } else {
    return ZoneBorders(p, tile, first_row, tile.kv_begin);
  }
}

// Replaces the warpgroup's queries by those of the zone of `token`. The products with the old ones
// are complete: next_tile waits for its own. Cost: the time of a load, while the other warpgroup
// computes.
template <typename C, typename Borders>
__device__ __forceinline__ void replace_queries(const Consumer<C>& self, const Item& tile,
                                                Borders& borders, int token) {
  self.meet();  // no warp's products read q any more
  copy_queries<C>(self.p, tile, tile.first_row + self.index * C::kGroupRows, self.thread, self.q,
                  borders.chunk_begin(token));
  borders.pass(token);
  wait_for_copies();
  shared_write_fence();
  self.meet();  // q is here
}

// Where the walk comes to a border of zones, two or three times.
template <typename C, typename Borders>
__device__ __forceinline__ void pass_border(const Consumer<C>& self, const Item& tile,
                                            Borders& borders, int token) {
  if (borders.reaches(token)) replace_queries<C>(self, tile, borders, token);
}

// Attends the KV tiles of one item.
template <typename C>
__device__ __forceinline__ void attend_tiles(const Consumer<C>& self, const Item& tile,
                                             RowPair& rows, float (&o)[C::kHeadDim / 2]) {
  const int lane = self.thread % 32;
  const int first_row = tile.first_row + self.index * C::kGroupRows;
  uint32_t weights[C::kTileTokens / 4];
  // Tiles that this warpgroup needs, and how many of them all of its rows see whole: only the
  // others are masked.
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
    if constexpr (C::kZones) {
      auto borders = borders_of<C>(self.p, tile, first_row);
#pragma unroll 1
      for (i = 1; i < num_own; ++i) {
        pass_border<C>(self, tile, borders, self.kv_begin + i * C::kTileTokens);
        if (i < num_whole) {
          next_tile<C>(self, i, sees_all, rows, o, weights);
        } else {
          next_tile<C>(self, i, mask, rows, o, weights);
        }
      }
    } else {
      for (i = 1; i < num_whole; ++i) next_tile<C>(self, i, sees_all, rows, o, weights);
      for (; i < num_own; ++i) next_tile<C>(self, i, mask, rows, o, weights);
    }
    const int last_begin = tile.kv_begin + (num_own - 1) * C::kTileTokens;
    last_values<C>(self, num_own - 1, tile.kv_end - last_begin, o, weights);
  }
#pragma unroll 1
  for (; i < self.num_kv_tiles; ++i) skip_tile<C>(self, i);
}

// Attends one item and writes its output, state or registers; its q is in shared memory.
template <typename C, bool kSplits>
__device__ __forceinline__ void attend(const Consumer<C>& self, const Item& tile) {
  const int lane = self.thread % 32;
  float o[C::kHeadDim / 2];
  RowPair rows = make_row_pair(self.p, tile, self.first_row_of_warp(tile), lane);
  load_accumulator<C::kHeadDim>(self.p, tile, rows, lane, o);
  if constexpr (kSplits) {
    if (tile.part == Part::kSecond) take_over<C>(self, tile, rows, o);
  }
  attend_tiles<C>(self, tile, rows, o);
  if constexpr (kSplits) {
    if (tile.part == Part::kFirst) return hand_over<C>(self, tile, rows, o);
  }
  store_rows<C::kHeadDim>(self.p, rows, lane, o);
}

// Attends an item unless there is nothing to do. Returns the number of stages that it consumed.
template <typename C, bool kSplits>
__device__ __forceinline__ int attend_if_needed(const Consumer<C>& self, const Item& tile) {
  const bool is_part = kSplits && tile.part != Part::kWhole;
  // A part is attended even without KV tiles: the other part waits for its registers, or has
  // written them.
  if (self.num_kv_tiles > 0 || is_part || !state_stays(self.p, tile))
    attend<C, kSplits>(self, tile);
  return self.num_kv_tiles;
}

// All items of the CTA, for one warpgroup. `make_item(i)` gives the i-th; `attend_item(self, item)`
// attends it and returns the number of stages that it consumed. q of the next item is copied while
// this one is attended, or after it where q has one buffer.
template <typename C, typename MakeItem, typename AttendItem>
__device__ __forceinline__ void consume_all(const PrefillParams& p, Shared<C>& shared,
                                            const ItemRange& range, const MakeItem& make_item,
                                            const AttendItem& attend_item) {
  // The shuffle tells the compiler that the value is uniform in a warp, and addresses with it.
  const int index = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128 - 1, 0);
  const int thread = threadIdx.x % 128;
  const auto begin_queries = [&](const Item& tile, int buffer) {
    const int first_row = tile.first_row + index * C::kGroupRows;
    int chunk_begin = 0;
    if constexpr (C::kZones) {
      chunk_begin = borders_of<C>(p, tile, first_row).chunk_begin(tile.kv_begin);
    }
    copy_queries<C>(p, tile, first_row, thread, shared.q[buffer][index], chunk_begin);
  };
  Item tile = make_item(range.begin);
  begin_queries(tile, 0);
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const int buffer = (i - range.begin) % C::kQueryBuffers;
    const int count = tile.num_kv_tiles(tile.first_row, C::kNumRows, p.group, C::kTileTokens);
    const Consumer<C> self{
        p,     shared, index, thread, shared_address(shared.q[buffer][index]), tile.kv_begin,
        count, step};
    wait_for_copies();
    shared_write_fence();
    self.meet();  // q is here, and no thread reads the other buffer any more
    const bool has_next = i + 1 < range.end;
    Item next = tile;
    if (has_next) next = make_item(i + 1);
    if (C::kQueryBuffers == 2 && has_next) begin_queries(next, buffer ^ 1);
    step += attend_item(self, tile);
    if (C::kQueryBuffers == 1 && has_next) {
      self.meet();  // no warp's products read q any more
      begin_queries(next, 0);
    }
    tile = next;
  }
}

// grid: CTAs of tiles_per_cta items each. Warpgroup 0 is the producer and gives its registers to
// the consumers.
template <typename C, bool kSplits>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillParams p,
                   const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = aligned_shared<Shared<C>>(shared_bytes);
  if constexpr (kSplits) take_ticket<C>(p, shared);
  begin_pipeline<C>(shared, &kv_map);
  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce_all<C, kSplits>(p, &kv_map, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    const ItemRange range(p, cta_index<kSplits>(shared));
    consume_all<C>(
        p, shared, range, [&](int i) { return item_at<kSplits>(p, i); },
        attend_if_needed<C, kSplits>);
  }
}

// Launches a kernel of this structure.
template <typename C, typename SharedType, typename... Args>
cudaError_t launch(cudaStream_t stream, void (*kernel)(Args...), const PrefillParams& p,
                   const Args&... args) {
  // At every launch, since the attribute belongs to the current device; the call is cheap.
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<SharedType>());
  if (status != cudaSuccess) return status;
  const int num_items = p.num_tiles + p.num_split;
  const int num_blocks = (num_items + p.tiles_per_cta - 1) / p.tiles_per_cta;
  kernel<<<num_blocks, C::kNumThreads, shared_bytes<SharedType>(), stream>>>(args...);
  return cudaGetLastError();
}

}  // namespace sluice::cuda::sm90
