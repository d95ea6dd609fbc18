// Prefill attention for Hopper over a tile mask and columns: the kernel of
// attention/prefill/sm90_tiles.cuh, which goes on with columns.
//
// Tiles of columns come through the same stages, by a tensor map of their own. To the consumers
// they are a second walk with the registers of the first: it ends before they begin, which costs
// about a tile of rows' last product. Bound: as without columns, in tiles visited, and for each
// tile of columns the positions from L1. Thread rule: device code.
#pragma once

#include "ops/cuda/attention/prefill/columns.cuh"
#include "ops/cuda/attention/prefill/sm90_tiles.cuh"

namespace sluice::cuda::sm90 {

// Brings the columns of one tile of rows; returns the number of stages.
template <typename C>
__device__ __forceinline__ int produce_columns(const ColumnTiles& visited, const CUtensorMap* map,
                                               const PrefillTile& tile, Shared<C>& shared,
                                               int step) {
  const int num_parts = visited.template num_parts<C::kTileTokens>();
  int next_begin = num_parts > 0 ? visited.template part<C::kTileTokens>(0).begin : 0;
  for (int i = 0; i < num_parts; ++i) {
    const int begin = next_begin;
    // Read ahead of the waits, which hide the latency.
    if (i + 1 < num_parts) next_begin = visited.template part<C::kTileTokens>(i + 1).begin;
    bring_tile<C>(map, shared, step + i, tile.kv_head, begin, visited.segment());
  }
  return num_parts;
}

// Brings what all tiles of rows of the CTA visit.
template <typename C>
__device__ __forceinline__ void produce_all_set_and_columns(
    const PrefillParams& p, const PrefillMask& mask, const PrefillColumns& columns,
    const CUtensorMap* kv_map, const CUtensorMap* column_map, Shared<C>& shared) {
  const ItemRange range(p, blockIdx.x);
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const PrefillTile tile = tile_at(p, i, C::kNumRows);
    step += produce_set<C>(p, mask, kv_map, tile, shared, step);
    step += produce_columns<C>(ColumnTiles(p, mask, columns, tile), column_map, tile, shared, step);
  }
}

// ZoneBorders of a walk over columns, in places of the visited tiles side by side.
__device__ __forceinline__ SetZoneBorders column_borders(const PrefillParams& p,
                                                         const ColumnTiles& visited,
                                                         const Item& tile) {
  Item side_by_side = tile;
  side_by_side.kv_begin = 0;
  side_by_side.before_at = visited.before_at();
  side_by_side.own_at = visited.own_at();
  return SetZoneBorders(p, side_by_side, tile.first_row);
}

// Attends the columns of one item, with the registers that its KV tiles left. With zones the tiles
// left the queries of their last one.
template <typename C>
__device__ __forceinline__ void attend_columns(const Consumer<C>& self, const ColumnTiles& visited,
                                               const Item& tile, RowPair& rows,
                                               float (&o)[C::kHeadDim / 2]) {
  const int lane = self.thread % 32;
  uint32_t weights[C::kTileTokens / 4];
  ColumnPart part;
  const auto mask = [&](int, float(&s)[C::kTileTokens / 2]) {
    visited.template mask_scores<C::kTileTokens>(part, rows, lane, s);
  };
  // A warpgroup without rows passes its turns on and releases stages.
  const bool has_rows = tile.first_row + self.index * C::kGroupRows < tile.num_rows;
  if (self.index == 1 && self.num_kv_tiles > 1) self.give_turn();
  int i = 0;
  if (has_rows && self.num_kv_tiles > 0) {
    part = visited.template part<C::kTileTokens>(0);
    if constexpr (C::kZones) {
      SetZoneBorders borders = column_borders(self.p, visited, tile);
      replace_queries<C>(self, tile, borders, 0);
      first_tile<C>(self, mask, rows, o, weights);
#pragma unroll 1
      for (i = 1; i < self.num_kv_tiles; ++i) {
        part = visited.template part<C::kTileTokens>(i);
        pass_border<C>(self, tile, borders, i * C::kTileTokens);
        next_tile<C>(self, i, mask, rows, o, weights);
      }
    } else {
      first_tile<C>(self, mask, rows, o, weights);
      for (i = 1; i < self.num_kv_tiles; ++i) {
        part = visited.template part<C::kTileTokens>(i);  // read ahead of the scores
        next_tile<C>(self, i, mask, rows, o, weights);
      }
    }
    last_values<C>(self, i - 1, C::kTileTokens, o, weights);
  }
#pragma unroll 1
  for (; i < self.num_kv_tiles; ++i) skip_tile<C>(self, i);
}

// Attends one item and writes its output: only the last call of a walk has columns. Returns the
// number of stages that it consumed.
template <typename C>
__device__ __forceinline__ int attend_set_and_columns(const Consumer<C>& self,
                                                      const PrefillMask& mask,
                                                      const PrefillColumns& columns,
                                                      const Item& tile) {
  const int lane = self.thread % 32;
  float o[C::kHeadDim / 2];
  RowPair rows = make_row_pair(self.p, tile, self.first_row_of_warp(tile), lane);
  load_accumulator<C::kHeadDim>(self.p, tile, rows, lane, o);
  attend_tiles<C>(self, tile, rows, o);

  const ColumnTiles visited(self.p, mask, columns, tile);
  const int num_stages = visited.template num_parts<C::kTileTokens>();
  const Consumer<C> of_columns{self.p, self.shared,   self.index, self.thread,
                               self.q, self.kv_begin, num_stages, self.step + self.num_kv_tiles};
  see_up_to_own(self.p, tile, self.first_row_of_warp(tile), lane, rows);
  attend_columns<C>(of_columns, visited, tile, rows, o);
  store_rows<C::kHeadDim>(self.p, rows, lane, o);
  return self.num_kv_tiles + num_stages;
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    prefill_columns_kernel(const __grid_constant__ PrefillParams p,
                           const __grid_constant__ PrefillMask mask,
                           const __grid_constant__ PrefillColumns columns,
                           const __grid_constant__ CUtensorMap kv_map,
                           const __grid_constant__ CUtensorMap column_map) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = aligned_shared<Shared<C>>(shared_bytes);
  begin_pipeline<C>(shared, &kv_map);
  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) {
      produce_all_set_and_columns<C>(p, mask, columns, &kv_map, &column_map, shared);
    }
  } else {
    take_registers<C::kConsumerRegisters>();
    const ItemRange range(p, blockIdx.x);
    consume_all<C>(
        p, shared, range, [&](int i) { return item_of_set<C>(p, mask, i); },
        [&](const Consumer<C>& self, const Item& tile) {
          return attend_set_and_columns<C>(self, mask, columns, tile);
        });
  }
}

}  // namespace sluice::cuda::sm90
