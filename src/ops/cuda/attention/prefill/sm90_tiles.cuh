// Prefill attention for Hopper over a tile mask: the kernel of attention/prefill/sm90.cuh, whose
// producer brings only the set tiles.
//
// The consumers are those without a mask. Only the last visited tile can have tokens that a row
// does not see, so positions of the others do not matter: the consumers attend a run in which the
// visited tiles lie side by side up to the last one. Bound: as without a mask, in tiles visited.
// Thread rule: device code.
#pragma once

#include "ops/cuda/attention/prefill/set_tiles.cuh"
#include "ops/cuda/attention/prefill/sm90.cuh"

namespace sluice::cuda::sm90 {

// Brings the set KV tiles of one tile of rows; returns their number.
template <typename C>
__device__ __forceinline__ int produce_set(const PrefillParams& p, const PrefillMask& mask,
                                           const CUtensorMap* map, const PrefillTile& tile,
                                           Shared<C>& shared, int step) {
  const int32_t* table = p.block_table + static_cast<int64_t>(tile.seq) * p.max_blocks;
  const SetTiles set(p, mask, tile, C::kNumRows);
  int next_token = set.next(tile.kv_begin);
  int next_block =
      next_token != kNoToken ? table[(next_token - tile.kv_begin) / p.block_tokens] : 0;
  int i = 0;
  for (; next_token != kNoToken; ++i) {
    const int block = next_block;
    const int in_block = (next_token - tile.kv_begin) % p.block_tokens;
    // Read ahead of the waits, which hide the latency.
    next_token = set.next(next_token + C::kTileTokens);
    if (next_token != kNoToken) next_block = table[(next_token - tile.kv_begin) / p.block_tokens];
    bring_tile<C>(map, shared, step + i, tile.kv_head, in_block, block);
  }
  return i;
}

// Brings the KV tiles of all tiles of rows of the CTA.
template <typename C>
__device__ __forceinline__ void produce_all_set(const PrefillParams& p, const PrefillMask& mask,
                                                const CUtensorMap* map, Shared<C>& shared) {
  const ItemRange range(p, blockIdx.x);
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    step += produce_set<C>(p, mask, map, tile_at(p, i, C::kNumRows), shared, step);
  }
}

// Zones over a mask.
template <int kHeadDim, int kTileTokens>
struct SetZoneConfig : Config<kHeadDim, kTileTokens, true> {
  static constexpr bool kOverSet = true;
};

// A tile of rows and the run in which the tiles that it visits lie side by side, the last of them
// in its own place. Whole warps.
template <typename C>
__device__ __forceinline__ Item item_of_set(const PrefillParams& p, const PrefillMask& mask,
                                            int32_t index) {
  Item item{tile_at(p, index, C::kNumRows)};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const SetTiles set(p, mask, item, C::kNumRows);
  const auto [count, first, last] = set.summary(lane);
  if constexpr (C::kOverSet) {
    const int32_t position = item.position(item.first_row, p.group);
    const int32_t own_begin = position - position % p.chunk_tokens;
    item.own_at = (last + 1 - set.count_from(own_begin, lane)) * kMaskTileTokens;
    item.before_at =
        (last + 1 - set.count_from(own_begin - p.chunk_tokens, lane)) * kMaskTileTokens;
  }
  // A run in small blocks may begin inside a tile.
  const bool begins_inside = first == item.kv_begin / kMaskTileTokens;
  const int left_out = begins_inside ? item.kv_begin % kMaskTileTokens : 0;
  if (count == 0) {
    item.kv_end = item.kv_begin;
  } else {
    item.kv_begin = (last + 1 - count) * kMaskTileTokens + left_out;
    item.kv_end = min(item.kv_end, (last + 1) * kMaskTileTokens);
  }
  return item;
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    prefill_tiles_kernel(const __grid_constant__ PrefillParams p,
                         const __grid_constant__ PrefillMask mask,
                         const __grid_constant__ CUtensorMap kv_map) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = aligned_shared<Shared<C>>(shared_bytes);
  begin_pipeline<C>(shared, &kv_map);
  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce_all_set<C>(p, mask, &kv_map, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    const ItemRange range(p, blockIdx.x);
    consume_all<C>(
        p, shared, range, [&](int i) { return item_of_set<C>(p, mask, i); },
        attend_if_needed<C, false>);
  }
}

}  // namespace sluice::cuda::sm90
