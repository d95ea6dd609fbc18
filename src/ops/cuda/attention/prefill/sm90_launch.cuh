// Launches one configuration of the Hopper prefill kernels; included by their instantiations
// (sm90_d*.cu). Thread rule: host thread, enqueue only.
#pragma once

#include "ops/cuda/attention/prefill/sm90.cuh"
#include "ops/cuda/attention/prefill/sm90_columns.cuh"
#include "ops/cuda/attention/prefill/sm90_lists.cuh"
#include "ops/cuda/attention/prefill/sm90_tiles.cuh"

namespace sluice::cuda::sm90 {

// Chooses the kernel: with lists, with a mask (and columns, zones, or both), with zones, with split
// tiles, or with none of them.
template <int kHeadDim, int kTileTokens>
cudaError_t launch_tiles(cudaStream_t stream, const PrefillParams& p,
                         const PrefillSelection& selection, const CUtensorMap& kv_map,
                         const CUtensorMap* column_map) {
  using C = Config<kHeadDim, kTileTokens>;
  using L = ListConfig<kHeadDim, kTileTokens>;
  if (selection.lists != nullptr) {
    return launch<L, ListShared<L>>(stream, prefill_lists_kernel<L>, p, p, *selection.lists,
                                    kv_map);
  }
  if (selection.columns != nullptr && p.chunk_tokens > 0) {
    using Z = SetZoneConfig<kHeadDim, kTileTokens>;
    return launch<Z, Shared<Z>>(stream, prefill_columns_kernel<Z>, p, p, *selection.mask,
                                *selection.columns, kv_map, *column_map);
  }
  if (selection.columns != nullptr) {
    return launch<C, Shared<C>>(stream, prefill_columns_kernel<C>, p, p, *selection.mask,
                                *selection.columns, kv_map, *column_map);
  }
  if (selection.mask != nullptr && p.chunk_tokens > 0) {
    using Z = SetZoneConfig<kHeadDim, kTileTokens>;
    return launch<Z, Shared<Z>>(stream, prefill_tiles_kernel<Z>, p, p, *selection.mask, kv_map);
  }
  if (selection.mask != nullptr) {
    return launch<C, Shared<C>>(stream, prefill_tiles_kernel<C>, p, p, *selection.mask, kv_map);
  }
  if (p.chunk_tokens > 0) {
    using Z = Config<kHeadDim, kTileTokens, true>;
    auto* kernel = p.num_split > 0 ? prefill_kernel<Z, true> : prefill_kernel<Z, false>;
    return launch<Z, Shared<Z>>(stream, kernel, p, p, kv_map);
  }
  auto* kernel = p.num_split > 0 ? prefill_kernel<C, true> : prefill_kernel<C, false>;
  return launch<C, Shared<C>>(stream, kernel, p, p, kv_map);
}

// Chooses the KV tile: 128 tokens if they divide a block, else 64.
template <int kHeadDim>
cudaError_t launch_head_dim(cudaStream_t stream, const PrefillParams& p,
                            const PrefillSelection& selection, const CUtensorMap& kv_map,
                            const CUtensorMap* column_map) {
  return tile_tokens(kHeadDim, p.block_tokens) == 128
             ? launch_tiles<kHeadDim, 128>(stream, p, selection, kv_map, column_map)
             : launch_tiles<kHeadDim, 64>(stream, p, selection, kv_map, column_map);
}

}  // namespace sluice::cuda::sm90
