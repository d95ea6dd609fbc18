// Prefill attention with warp-wide matrix products (mma.sync): the general kernel, which
// attention/prefill/sm80_d*.cu instantiate.
//
// For GPUs from sm_80 on, and for the shapes that the Hopper kernel does not support: any head_dim
// up to 256, blocks of any multiple of 16 tokens. Bound: tensor-core FLOP/s. Tile: a CTA is 4 warps
// of 16 packed rows; K and V come by asynchronous copies, K of the next tile during the softmax and
// V of this tile during the scores. Share: 25 to 28 % of a large matrix product on Hopper
// (docs/kernels/cuda_attention.md). Thread rule: device code.
// Source: Dao 2023, arXiv 2307.08691 (the loop).
#pragma once

#include "ops/cuda/attention/prefill/columns.cuh"
#include "ops/cuda/attention/prefill/pages.cuh"
#include "ops/cuda/attention/prefill/set_tiles.cuh"
#include "ops/cuda/attention/prefill/sm80_tile.cuh"

namespace sluice::cuda::sm80 {

// ---- Walks: which KV tiles a tile of rows visits, the same for all threads of a CTA. `present`,
// `begin` and `mask` are of the current tile; after `look_ahead` the next tile is known. `begin`
// tells `copy` where a tile lies, and `mask` hides what rows do not see of the current one.

// A walk over tokens in blocks.
template <typename C>
struct BlockWalk {
  static __device__ __forceinline__ void copy(const PrefillParams& p, const PrefillTile& tile,
                                              int begin, int plane,
                                              uint16_t (&to)[C::kTileTokens][C::kRowElements]) {
    copy_tile<C>(p, tile, begin, plane, to);
  }
  static __device__ __forceinline__ void mask(const RowPair& rows, int begin, int lane,
                                              float (&s)[C::kTileTokens / 2]) {
    mask_scores<C::kTileTokens>(rows, begin, lane, s);
  }
};

// All tiles that the rows see.
template <typename C>
struct WholeWalk : BlockWalk<C> {
  int32_t kv_begin;
  int32_t num_tiles;
  int32_t i = 0;

  __device__ WholeWalk(const PrefillParams& p, const PrefillTile& tile)
      : kv_begin(tile.kv_begin),
        num_tiles(tile.num_kv_tiles(tile.first_row, C::kNumRows, p.group, C::kTileTokens)) {}

  __device__ bool present() const { return i < num_tiles; }
  __device__ int32_t begin() const { return kv_begin + i * C::kTileTokens; }

  __device__ void look_ahead() {}
  __device__ bool has_next() const { return i + 1 < num_tiles; }
  __device__ int32_t next_begin() const { return begin() + C::kTileTokens; }
  __device__ void advance() { ++i; }
};

// The tiles that the rows have listed. Each warp merges the lists for itself.
template <typename C>
struct ListWalk : BlockWalk<C> {
  PageWalk<C::kTileTokens> pages;
  int32_t lane_of[2];  // that walks the list of the thread's two rows
  ListedTile at;
  ListedTile next;

  __device__ ListWalk(const PrefillParams& p, const PrefillLists& lists, const PrefillTile& tile)
      : pages(p, lists, tile, C::kNumRows, static_cast<int32_t>(threadIdx.x % 32)),
        at(pages.next()) {
    const int32_t row =
        tile.first_row + static_cast<int32_t>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4);
    lane_of[0] = pages.lane_of_row(p, lists, tile, row);
    lane_of[1] = pages.lane_of_row(p, lists, tile, row + 8);
  }

  __device__ bool present() const { return at.present(); }
  __device__ int32_t begin() const { return at.begin; }
  __device__ void mask(const RowPair& rows, int begin, int lane,
                       float (&s)[C::kTileTokens / 2]) const {
    BlockWalk<C>::mask(rows, begin, lane, s);
    if (!at.is_partial) return;
    const uint32_t of_rows[2] = {__shfl_sync(0xffffffffu, at.mask, lane_of[0]),
                                 __shfl_sync(0xffffffffu, at.mask, lane_of[1])};
    mask_pages<C::kTileTokens>(of_rows, s);
  }

  __device__ void look_ahead() { next = pages.next(); }
  __device__ bool has_next() const { return next.present(); }
  __device__ int32_t next_begin() const { return next.begin; }
  __device__ void advance() { at = next; }
};

// The set tiles of a mask. All rows of the CTA share them, so nothing is masked for it.
template <typename C>
struct SetWalk : BlockWalk<C> {
  SetTiles set;
  int32_t token;
  int32_t next_token = kNoToken;

  __device__ SetWalk(const PrefillParams& p, const PrefillMask& of, const PrefillTile& tile)
      : set(p, of, tile, C::kNumRows), token(set.next(tile.kv_begin)) {}

  __device__ bool present() const { return token != kNoToken; }
  __device__ int32_t begin() const { return token; }

  __device__ void look_ahead() { next_token = set.next(token + C::kTileTokens); }
  __device__ bool has_next() const { return next_token != kNoToken; }
  __device__ int32_t next_begin() const { return next_token; }
  __device__ void advance() { token = next_token; }
};

// The columns beside a mask, after its tiles.
template <typename C>
struct ColumnWalk {
  const PrefillColumns& columns;
  ColumnTiles visited;
  int32_t i = 0;
  int32_t chunk_tokens = 0;  // with zones, and where the rows' own chunk begins
  int32_t own_begin = 0;

  __device__ ColumnWalk(const PrefillParams& p, const PrefillMask& of,
                        const PrefillColumns& columns_of, const PrefillTile& tile)
      : columns(columns_of), visited(p, of, columns_of, tile) {
    if constexpr (C::kZones) {
      const int32_t position = tile.position(tile.first_row, p.group);
      chunk_tokens = p.chunk_tokens;
      own_begin = position - position % chunk_tokens;
    }
  }

  __device__ ColumnPart part(int32_t index) const {
    return visited.template part<C::kTileTokens>(index);
  }
  __device__ bool present() const { return i < visited.template num_parts<C::kTileTokens>(); }
  __device__ int32_t begin() const { return part(i).begin; }
  __device__ void copy(const PrefillParams& p, const PrefillTile& tile, int begin, int plane,
                       uint16_t (&to)[C::kTileTokens][C::kRowElements]) const {
    const int64_t head =
        static_cast<int64_t>(visited.segment()) * columns.num_kv_heads + tile.kv_head;
    const int64_t column = (2 * head + plane) * columns.max_columns + begin;
    copy_tokens<C>(p, columns.kv + column * p.head_dim, 0, C::kTileTokens, to);
  }
  __device__ void mask(const RowPair& rows, int, int lane, float (&s)[C::kTileTokens / 2]) const {
    visited.template mask_scores<C::kTileTokens>(part(i), rows, lane, s);
  }

  // The first token of the zone of the index-th part: far chunks have one zone.
  __device__ int32_t zone_token(int32_t index) const {
    const int32_t at = index * C::kTileTokens;
    if (at >= visited.own_at()) return own_begin;
    return own_begin - (at >= visited.before_at() ? chunk_tokens : 2 * chunk_tokens);
  }
  __device__ int32_t token() const { return zone_token(i); }
  __device__ int32_t next_token() const { return zone_token(i + 1); }

  __device__ void look_ahead() {}
  __device__ bool has_next() const { return i + 1 < visited.template num_parts<C::kTileTokens>(); }
  __device__ int32_t next_begin() const { return part(i + 1).begin; }
  __device__ void advance() { ++i; }
};

// Tokens of the zones of keys of the current tile and of the next one.
template <typename Walk>
__device__ int32_t token_of(const Walk& walk) {
  return walk.begin();
}
template <typename Walk>
__device__ int32_t next_token_of(const Walk& walk) {
  return walk.next_begin();
}
template <typename C>
__device__ int32_t token_of(const ColumnWalk<C>& walk) {
  return walk.token();
}
template <typename C>
__device__ int32_t next_token_of(const ColumnWalk<C>& walk) {
  return walk.next_token();
}

// Begins to copy the first K of a walk. REQUIRES: no thread reads a K any more.
template <typename C, typename Walk>
__device__ __forceinline__ void begin_walk(const PrefillParams& p, const PrefillTile& tile,
                                           const Walk& walk, Shared<C>& shared) {
  if (walk.present()) walk.copy(p, tile, walk.begin(), 0, shared.k);
}

// Begins to replace the queries where the walk comes to a border of zones. REQUIRES: no thread
// reads them any more.
template <typename C>
__device__ __forceinline__ void pass_border(const PrefillParams& p, const PrefillTile& tile,
                                            ZoneBorders& borders, int token, Shared<C>& shared) {
  if (!borders.reaches(token)) return;
  copy_queries<C>(p, tile, shared, borders.chunk_begin(token));
  borders.pass(token);
}

// Attends the KV tiles of a walk that has begun.
template <typename C, typename Walk>
__device__ __forceinline__ void attend_walk(const PrefillParams& p, const PrefillTile& tile,
                                            Walk& walk, RowPair& rows, float (&o)[C::kChannels / 2],
                                            Shared<C>& shared) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  [[maybe_unused]] ZoneBorders borders;
  if constexpr (C::kZones) {
    if (walk.present()) borders = ZoneBorders(p, tile, tile.first_row, token_of(walk));
  }
  for (; walk.present(); walk.advance()) {
    const int begin = walk.begin();
    wait_for_copies();
    __syncthreads();  // K is here; no thread reads the V of the tile before any more
    walk.copy(p, tile, begin, 1, shared.v);
    float s[C::kTileTokens / 2];
    multiply_scores<C>(shared, warp, lane, s);
    wait_for_copies();
    __syncthreads();  // V is here; no thread reads this K any more
    walk.look_ahead();
    if (walk.has_next()) {
      walk.copy(p, tile, walk.next_begin(), 0, shared.k);
      // All scores of this tile are computed, those of the next wait for these copies, too.
      if constexpr (C::kZones) pass_border<C>(p, tile, borders, next_token_of(walk), shared);
    }

    float alpha[2];
    uint32_t weights[C::kTileTokens / 4];
    walk.mask(rows, begin, lane, s);
    softmax_tile<C::kTileTokens>(p.scale, rows, s, alpha);
    scale_accumulator<C::kChannels>(alpha, o);
    pack_weights<C::kTileTokens>(s, weights);
    multiply_values<C>(shared, lane, weights, o);
  }
}

// Begins a walk after another one, whose last tile's queries are there. All threads.
template <typename C, typename Walk>
__device__ __forceinline__ void begin_further_walk(const PrefillParams& p, const PrefillTile& tile,
                                                   const Walk& walk, Shared<C>& shared) {
  if constexpr (C::kZones) {
    wait_for_copies();  // of the same queries, if the walk before visited no tile
    __syncthreads();
    const int32_t token = walk.present() ? token_of(walk) : 0;
    if (walk.present()) copy_queries<C>(p, tile, shared, token - token % p.chunk_tokens);
  }
  begin_walk<C>(p, tile, walk, shared);
}

// Attends one tile of rows to the walks, one after the other, and writes its output or state.
template <typename C, typename Walk, typename... Walks>
__device__ __forceinline__ void attend(const PrefillParams& p, const PrefillTile& tile,
                                       Shared<C>& shared, Walk& walk, Walks&... more) {
  if (!walk.present() && state_stays(p, tile)) return;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  int chunk_begin = 0;
  if constexpr (C::kZones) {
    const int first_token = walk.present() ? walk.begin() : tile.kv_begin;
    chunk_begin = first_token - first_token % p.chunk_tokens;
  }
  copy_queries<C>(p, tile, shared, chunk_begin);
  begin_walk<C>(p, tile, walk, shared);
  RowPair rows = make_row_pair(p, tile, tile.first_row + warp * 16, lane);
  float o[C::kChannels / 2];
  load_accumulator<C::kChannels>(p, tile, rows, lane, o);
  attend_walk<C>(p, tile, walk, rows, o, shared);
  (...,
   (begin_further_walk<C>(p, tile, more, shared), attend_walk<C>(p, tile, more, rows, o, shared)));
  // `out` may be q's memory: the block's own rows, which all of its warps have read.
  wait_for_copies();
  __syncthreads();
  store_rows<C::kChannels>(p, rows, lane, o);
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads)
    prefill_kernel(const __grid_constant__ PrefillParams p) {
  extern __shared__ std::byte shared_bytes[];
  const PrefillTile tile = tile_at(p, blockIdx.x, C::kNumRows);
  if (tile.first_row >= tile.num_rows) return;
  WholeWalk<C> walk(p, tile);
  attend<C>(p, tile, *reinterpret_cast<Shared<C>*>(shared_bytes), walk);
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads)
    prefill_lists_kernel(const __grid_constant__ PrefillParams p,
                         const __grid_constant__ PrefillLists lists) {
  extern __shared__ std::byte shared_bytes[];
  const PrefillTile tile = tile_at(p, blockIdx.x, C::kNumRows);
  if (tile.first_row >= tile.num_rows) return;
  ListWalk<C> walk(p, lists, tile);
  attend<C>(p, tile, *reinterpret_cast<Shared<C>*>(shared_bytes), walk);
}

template <typename C>
__global__ void __launch_bounds__(C::kNumThreads)
    prefill_tiles_kernel(const __grid_constant__ PrefillParams p,
                         const __grid_constant__ PrefillMask mask) {
  extern __shared__ std::byte shared_bytes[];
  const PrefillTile tile = tile_at(p, blockIdx.x, C::kNumRows);
  if (tile.first_row >= tile.num_rows) return;
  SetWalk<C> walk(p, mask, tile);
  attend<C>(p, tile, *reinterpret_cast<Shared<C>*>(shared_bytes), walk);
}

// Only the last call of a walk has columns, so every tile of rows is written.
template <typename C>
__global__ void __launch_bounds__(C::kNumThreads)
    prefill_columns_kernel(const __grid_constant__ PrefillParams p,
                           const __grid_constant__ PrefillMask mask,
                           const __grid_constant__ PrefillColumns columns) {
  extern __shared__ std::byte shared_bytes[];
  const PrefillTile tile = tile_at(p, blockIdx.x, C::kNumRows);
  if (tile.first_row >= tile.num_rows) return;
  SetWalk<C> walk(p, mask, tile);
  ColumnWalk<C> beside(p, mask, columns, tile);
  attend<C>(p, tile, *reinterpret_cast<Shared<C>*>(shared_bytes), walk, beside);
}

template <typename C, typename... Args>
cudaError_t launch_kernel(cudaStream_t stream, void (*kernel)(PrefillParams, Args...),
                          const PrefillParams& p, const Args&... args) {
  static_assert(sizeof(Shared<C>) <= kLeastSharedBytes);
  // Once per launch, since it belongs to the current device; it costs less than a microsecond.
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<C>));
  if (status != cudaSuccess) return status;
  kernel<<<p.num_tiles, C::kNumThreads, sizeof(Shared<C>), stream>>>(p, args...);
  return cudaGetLastError();
}

template <typename C>
cudaError_t launch(cudaStream_t stream, const PrefillParams& p, const PrefillSelection& selection) {
  if (selection.lists != nullptr) {
    return launch_kernel<C>(stream, prefill_lists_kernel<C>, p, *selection.lists);
  }
  if (selection.columns != nullptr) {
    return launch_kernel<C>(stream, prefill_columns_kernel<C>, p, *selection.mask,
                            *selection.columns);
  }
  if (selection.mask != nullptr) {
    return launch_kernel<C>(stream, prefill_tiles_kernel<C>, p, *selection.mask);
  }
  return launch_kernel<C>(stream, prefill_kernel<C>, p);
}

// Zones take everything, or a mask, with columns or without.
template <int kChannels, int kTileTokens, bool kCoded>
cudaError_t launch_zones(cudaStream_t stream, const PrefillParams& p,
                         const PrefillSelection& selection) {
  using C = Config<kChannels, kTileTokens, kCoded, true>;
  if (selection.columns != nullptr) {
    return launch_kernel<C>(stream, prefill_columns_kernel<C>, p, *selection.mask,
                            *selection.columns);
  }
  if (selection.mask != nullptr) {
    return launch_kernel<C>(stream, prefill_tiles_kernel<C>, p, *selection.mask);
  }
  return launch_kernel<C>(stream, prefill_kernel<C>, p);
}

// Launches the configuration for the KV element.
template <int kChannels, int kTileTokens>
cudaError_t launch_element(cudaStream_t stream, const PrefillParams& p,
                           const PrefillSelection& selection) {
  if (p.chunk_tokens > 0) {
    return p.is_coded ? launch_zones<kChannels, kTileTokens, true>(stream, p, selection)
                      : launch_zones<kChannels, kTileTokens, false>(stream, p, selection);
  }
  return p.is_coded ? launch<Config<kChannels, kTileTokens, true>>(stream, p, selection)
                    : launch<Config<kChannels, kTileTokens, false>>(stream, p, selection);
}

}  // namespace sluice::cuda::sm80
