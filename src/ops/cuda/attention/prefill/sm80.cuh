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

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/attention/prefill/columns.cuh"
#include "ops/cuda/attention/prefill/pages.cuh"
#include "ops/cuda/attention/prefill/set_tiles.cuh"
#include "ops/cuda/attention/prefill/sm80.h"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::sm80 {

// kChannels: head_dim rounded up; the channels from head_dim on are zeros in shared memory.
// kFp8: K and V in e4m3, which are copied by way of registers.
template <int kChannelsValue, int kTileTokensValue, bool kFp8Value>
struct Config {
  static constexpr int kChannels = kChannelsValue;
  static constexpr int kTileTokens = kTileTokensValue;
  static constexpr bool kFp8 = kFp8Value;
  static constexpr int kNumRows = kRowsPerTile;
  static constexpr int kNumThreads = kNumRows / 16 * 32;
  // 16 bytes after each row put the 8 rows that an ldmatrix reads at once into different banks.
  static constexpr int kRowElements = kChannels + 8;
};

// One tile of each: K of the next tile overwrites this one's K after the scores.
template <typename C>
struct alignas(16) Shared {
  uint16_t q[C::kNumRows][C::kRowElements];
  uint16_t k[C::kTileTokens][C::kRowElements];
  uint16_t v[C::kTileTokens][C::kRowElements];
};

// ---- Copies and products, one instruction each.

// Four 8x8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_transposed(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}

// d += a * b: 16 rows by 8 columns over 16.
__device__ __forceinline__ void multiply(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Tiles.

// Copies the tile's rows of q; rows after the last and channels from head_dim on are zeros.
template <typename C>
__device__ __forceinline__ void copy_queries(const PrefillParams& p, const PrefillTile& tile,
                                             Shared<C>& shared) {
  constexpr int kChunks = C::kChannels / 8;
  for (int i = threadIdx.x; i < C::kNumRows * kChunks; i += C::kNumThreads) {
    const int row = i / kChunks;
    const int channel = i % kChunks * 8;
    const int64_t head_row = head_row_of(p, tile, tile.first_row + row);
    const bool present = head_row >= 0 && channel < p.head_dim;
    const uint16_t* source = present ? p.q + head_row * p.head_dim + channel : p.q;
    copy_16(&shared.q[row][channel], source, present);
  }
}

// Copies tokens [begin, begin + kTileTokens) of K or of V, which lie side by side at `from`. Those
// from `end` on become zeros: their weight is 0, but 0 * NaN is NaN.
template <typename C>
__device__ __forceinline__ void copy_tokens(const PrefillParams& p, const uint16_t* from, int begin,
                                            int end,
                                            uint16_t (&to)[C::kTileTokens][C::kRowElements]) {
  constexpr int kChunks = C::kChannels / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < C::kTileTokens * kChunks; i += C::kNumThreads) {
    const int token = i / kChunks;
    const int channel = i % kChunks * 8;
    const bool present = begin + token < end && channel < p.head_dim;
    copy_16(&to[token][channel], present ? from + token * p.head_dim + channel : from, present);
  }
}

// The same of tokens in e4m3, which lie in tiles of 16 rows and their scales, as bf16. Not
// asynchronous: loads are in flight together, but the copy ends with them.
template <typename C>
__device__ __forceinline__ void turn_tokens(const PrefillParams& p, const std::byte* from,
                                            int begin, int end,
                                            uint16_t (&to)[C::kTileTokens][C::kRowElements]) {
  constexpr int kChunks = C::kChannels / 16;
#pragma unroll 4
  for (int i = threadIdx.x; i < C::kTileTokens * kChunks; i += C::kNumThreads) {
    const int token = i / kChunks;
    const int channel = i % kChunks * 16;
    const bool present = begin + token < end && channel < p.head_dim;
    const std::byte* tile = from + token / 16 * 16 * (p.head_dim + 1);
    uint4 numbers = {};
    uint32_t factors = 0;
    if (present) {
      numbers = *reinterpret_cast<const uint4*>(tile + token % 16 * p.head_dim + channel);
      factors = e4m3_factors(static_cast<uint32_t>(tile[16 * p.head_dim + token % 16]));
    }
    auto* row = reinterpret_cast<Bf16x8*>(&to[token][channel]);
    row[0] = read_e4m3(uint2{numbers.x, numbers.y}, factors);
    row[1] = read_e4m3(uint2{numbers.z, numbers.w}, factors);
  }
}

// Copies K (plane 0) or V (plane 1) of the tile that begins at token `begin`.
template <typename C>
__device__ __forceinline__ void copy_tile(const PrefillParams& p, const PrefillTile& tile,
                                          int begin, int plane,
                                          uint16_t (&to)[C::kTileTokens][C::kRowElements]) {
  const int offset = begin - tile.kv_begin;
  const int32_t* table = p.block_table + static_cast<int64_t>(tile.seq) * p.max_blocks;
  const int64_t block = table[offset / p.block_tokens];
  const std::byte* base = p.kv_base + block * p.kv_stride_bytes;
  const int64_t token =
      static_cast<int64_t>(2 * tile.kv_head + plane) * p.block_tokens + offset % p.block_tokens;
  if constexpr (C::kFp8) {
    turn_tokens<C>(p, base + token * (p.head_dim + 1), begin, tile.kv_end, to);
  } else {
    const auto* from = reinterpret_cast<const uint16_t*>(base) + token * p.head_dim;
    copy_tokens<C>(p, from, begin, tile.kv_end, to);
  }
}

// s = q k^T for the warp's 16 rows.
template <typename C>
__device__ __forceinline__ void multiply_scores(const Shared<C>& shared, int warp, int lane,
                                                float (&s)[C::kTileTokens / 2]) {
#pragma unroll
  for (int i = 0; i < C::kTileTokens / 2; ++i) s[i] = 0.0f;
  const uint16_t* q_row = &shared.q[warp * 16 + lane % 16][lane / 16 * 8];
  // Lanes 0-15 address tokens 0-7 of a group of 16 (channels 0-7, then 8-15), lanes 16-31 the rest.
  const uint16_t* k_row = &shared.k[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll
  for (int channel = 0; channel < C::kChannels; channel += 16) {
    uint32_t a[4];
    load_matrices(q_row + channel, a);
#pragma unroll
    for (int token = 0; token < C::kTileTokens; token += 16) {
      uint32_t b[4];
      load_matrices(k_row + token * C::kRowElements + channel, b);
      multiply(&s[token / 2], a, b[0], b[1]);
      multiply(&s[token / 2 + 4], a, b[2], b[3]);
    }
  }
}

// o += weights v for the warp's 16 rows.
template <typename C>
__device__ __forceinline__ void multiply_values(const Shared<C>& shared, int lane,
                                                const uint32_t (&weights)[C::kTileTokens / 4],
                                                float (&o)[C::kChannels / 2]) {
  // Lanes 0-15 address tokens 0-15 of channels 0-7, lanes 16-31 those of channels 8-15.
  const uint16_t* v_row = &shared.v[lane % 16][lane / 16 * 8];
#pragma unroll
  for (int token = 0; token < C::kTileTokens; token += 16) {
#pragma unroll
    for (int channel = 0; channel < C::kChannels; channel += 16) {
      uint32_t b[4];
      load_transposed(v_row + token * C::kRowElements + channel, b);
      multiply(&o[channel / 2], &weights[token / 4], b[0], b[1]);
      multiply(&o[channel / 2 + 4], &weights[token / 4], b[2], b[3]);
    }
  }
}

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

  __device__ ColumnWalk(const PrefillParams& p, const PrefillMask& of,
                        const PrefillColumns& columns_of, const PrefillTile& tile)
      : columns(columns_of), visited(p, of, columns_of, tile) {}

  __device__ ColumnPart part(int32_t index) const {
    return visited.template part<C::kTileTokens>(index);
  }
  __device__ bool present() const { return i < visited.template num_parts<C::kTileTokens>(); }
  __device__ int32_t begin() const { return part(i).begin; }
  __device__ void copy(const PrefillParams& p, const PrefillTile& tile, int begin, int plane,
                       uint16_t (&to)[C::kTileTokens][C::kRowElements]) const {
    const int64_t head = static_cast<int64_t>(visited.segment()) * p.num_kv_heads + tile.kv_head;
    const int64_t column = (2 * head + plane) * columns.max_columns + begin;
    copy_tokens<C>(p, columns.kv + column * p.head_dim, 0, C::kTileTokens, to);
  }
  __device__ void mask(const RowPair& rows, int, int lane, float (&s)[C::kTileTokens / 2]) const {
    visited.template mask_scores<C::kTileTokens>(part(i), rows, lane, s);
  }

  __device__ void look_ahead() {}
  __device__ bool has_next() const { return i + 1 < visited.template num_parts<C::kTileTokens>(); }
  __device__ int32_t next_begin() const { return part(i + 1).begin; }
  __device__ void advance() { ++i; }
};

// Begins to copy the first K of a walk. REQUIRES: no thread reads a K any more.
template <typename C, typename Walk>
__device__ __forceinline__ void begin_walk(const PrefillParams& p, const PrefillTile& tile,
                                           const Walk& walk, Shared<C>& shared) {
  if (walk.present()) walk.copy(p, tile, walk.begin(), 0, shared.k);
}

// Attends the KV tiles of a walk that has begun.
template <typename C, typename Walk>
__device__ __forceinline__ void attend_walk(const PrefillParams& p, const PrefillTile& tile,
                                            Walk& walk, RowPair& rows, float (&o)[C::kChannels / 2],
                                            Shared<C>& shared) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
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
    if (walk.has_next()) walk.copy(p, tile, walk.next_begin(), 0, shared.k);

    float alpha[2];
    uint32_t weights[C::kTileTokens / 4];
    walk.mask(rows, begin, lane, s);
    softmax_tile<C::kTileTokens>(p.scale, rows, s, alpha);
    scale_accumulator<C::kChannels>(alpha, o);
    pack_weights<C::kTileTokens>(s, weights);
    multiply_values<C>(shared, lane, weights, o);
  }
}

// Attends one tile of rows to the walks, one after the other, and writes its output or state.
template <typename C, typename Walk, typename... Walks>
__device__ __forceinline__ void attend(const PrefillParams& p, const PrefillTile& tile,
                                       Shared<C>& shared, Walk& walk, Walks&... more) {
  if (!walk.present() && state_stays(p, tile)) return;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  copy_queries<C>(p, tile, shared);
  begin_walk<C>(p, tile, walk, shared);
  RowPair rows = make_row_pair(p, tile, tile.first_row + warp * 16, lane);
  float o[C::kChannels / 2];
  load_accumulator<C::kChannels>(p, tile, rows, lane, o);
  attend_walk<C>(p, tile, walk, rows, o, shared);
  (..., (begin_walk<C>(p, tile, more, shared), attend_walk<C>(p, tile, more, rows, o, shared)));
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

// Launches the configuration for the KV element.
template <int kChannels, int kTileTokens>
cudaError_t launch_element(cudaStream_t stream, const PrefillParams& p,
                           const PrefillSelection& selection) {
  return p.is_fp8 ? launch<Config<kChannels, kTileTokens, true>>(stream, p, selection)
                  : launch<Config<kChannels, kTileTokens, false>>(stream, p, selection);
}

}  // namespace sluice::cuda::sm80
