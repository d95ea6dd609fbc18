// Attention for ISAs that work in f32, written once over a vector type.
//
// Included by attention/{scalar,avx2}.cc and ops/cpu/avx512_vector.h, each with its own `Vector`;
// attention/fma_chunk.h has the arithmetic, this file the walk over an item.
// docs/kernels/cpu_attention.md has the theory. Every number is one fixed chain of operations that
// does not depend on the rest of the call:
//   score  = scale * (chain of fma over channels 0, 1, 2, ...)
//   tile   : max = max(max, 16 scores); p = exp(score - max); alpha = exp(old max - max)
//            sum = sum * alpha + (halving tree over the 16 p)
//            acc = acc * alpha, then a chain of fma over the visible tokens of the tile
// Tokens that a row may not see enter no chain: they may be NaN. When the maximum stays, alpha is
// exactly 1 and the multiplication is left out. Thread rule: pure functions over the caller's
// scratch.
#pragma once

#include "ops/cpu/attention/fma_chunk.h"
#include "ops/cpu/attention/tiles.h"

namespace sluice {
namespace {

// Query rows (row, head) per item, a multiple of every kernel height (3 and 6). This many rows
// share the conversion of a token, which costs a few percent of their arithmetic.
inline constexpr int32_t kMaxQueryRows = 192;

// The bytes that `carve` takes: per query row q, acc, p, alpha and four scalars; per chunk K and V.
inline size_t fma_scratch_bytes(int32_t num_query_rows, int32_t head_dim) {
  const size_t per_row = 2 * static_cast<size_t>(head_dim) + kChunkTokens + kChunkTiles + 4;
  const size_t per_chunk = 2 * static_cast<size_t>(head_dim) * kChunkTokens;
  return (static_cast<size_t>(num_query_rows) * per_row + per_chunk) * sizeof(float) + 64;
}

// K and V first: their sizes are multiples of 64 bytes, which keeps rows aligned for vector loads.
inline FmaScratch carve(std::byte* scratch, int32_t num_query_rows, int32_t head_dim) {
  auto* next = reinterpret_cast<float*>(scratch);
  const auto take = [&next](int64_t count) {
    float* begin = next;
    next += count;
    return begin;
  };
  FmaScratch s;
  s.k = take(static_cast<int64_t>(kChunkTokens) * head_dim);
  s.v = take(static_cast<int64_t>(kChunkTokens) * head_dim);
  s.q = take(static_cast<int64_t>(num_query_rows) * head_dim);
  s.acc = take(static_cast<int64_t>(num_query_rows) * head_dim);
  s.p = take(static_cast<int64_t>(num_query_rows) * kChunkTokens);
  s.alpha = take(static_cast<int64_t>(num_query_rows) * kChunkTiles);
  s.max = take(num_query_rows);
  s.sum = take(num_query_rows);
  s.seen = reinterpret_cast<int32_t*>(take(num_query_rows));
  s.moved = reinterpret_cast<int32_t*>(take(num_query_rows));
  return s;
}

// ---- Phase 0: queries and state in -------------------------------------------------------------

// Brings q as f32, and acc, max and sum, or the empty state (0, -inf, 0) for the first call.
template <typename Vector>
void load_rows(const AttentionItem& item, const FmaScratch& s) {
  const int32_t head_dim = item.head_dim;
  for (int32_t m = 0; m < item.num_rows * item.group; ++m) {
    const int32_t row = m / item.group;
    const int32_t head = m % item.group;
    const int64_t source = row * item.row_stride + static_cast<int64_t>(head) * head_dim;
    float* q = s.q + static_cast<int64_t>(m) * head_dim;
    float* acc = s.acc + static_cast<int64_t>(m) * head_dim;
    for (int32_t d = 0; d < head_dim; d += Vector::kLanes) {
      Vector::store(q + d, Vector::load_bf16(item.q + source + d));
    }
    // State rows lie as in q: acc has q's offsets, max and sum one number per head.
    if (item.first) {
      for (int32_t d = 0; d < head_dim; ++d) acc[d] = 0.0f;
      s.max[m] = -__builtin_inff();
      s.sum[m] = 0.0f;
    } else {
      std::memcpy(acc, item.acc + source, static_cast<size_t>(head_dim) * sizeof(float));
      s.max[m] = item.max[row * item.state_stride + head];
      s.sum[m] = item.sum[row * item.state_stride + head];
    }
  }
}

// ---- Phase 1: a chunk of KV to f32 -------------------------------------------------------------

// Values of one tile to f32 as panels of 16 channels, the order in which value_kernel reads them.
template <typename Vector>
void load_values(const TileSource& source, int32_t head_dim, float* v) {
  for (int32_t t = 0; t < source.num_tokens; ++t) {
    const uint16_t* from = source.v + static_cast<int64_t>(t) * head_dim;
    // v is [panel][token of the chunk][16 channels].
    float* to = v + t * kTileTokens;
    for (int32_t d = 0; d < head_dim; d += kTileTokens) {
      for (int i = 0; i < kPerTile<Vector>; ++i) {
        const int lane = i * Vector::kLanes;
        Vector::store(to + static_cast<int64_t>(d) * kChunkTokens + lane,
                      Vector::load_bf16(from + d + lane));
      }
    }
  }
}

// Tiles of a chunk, and how many.
struct Chunk {
  Tile tiles[kChunkTiles];
  int32_t num_tiles;
};

// Converts the tiles of `chunk` and prefetches those of `next` meanwhile.
template <typename Vector>
void load_chunk(const AttentionItem& item, const Chunk& chunk, const Chunk& next,
                const FmaScratch& s) {
  const int32_t head_dim = item.head_dim;
  for (int32_t tile = 0; tile < chunk.num_tiles; ++tile) {
    const TileSource source = tile_source(item, chunk.tiles[tile], 0);
    TilePrefetch ahead;
    if (tile < next.num_tiles) ahead = TilePrefetch(item, next.tiles[tile]);
    Vector::transpose_keys(source.k, source.num_tokens, head_dim,
                           s.k + static_cast<int64_t>(tile) * head_dim * kTileTokens, ahead);
    load_values<Vector>(source, head_dim, s.v + tile * kTileTokens * kTileTokens);
  }
}

// ---- The walk ----------------------------------------------------------------------------------

// How many tokens of the chunk each query row sees. Tiles ascend, so that it is a prefix.
inline void count_seen(const AttentionItem& item, const Chunk& chunk, const FmaScratch& s) {
  for (int32_t row = 0; row < item.num_rows; ++row) {
    const int32_t limit = row_limit(item, row);
    int32_t seen = 0;
    for (int32_t tile = 0; tile < chunk.num_tiles; ++tile) {
      seen += max_of(0, min_of(kTileTokens, limit - chunk.tiles[tile].position));
    }
    for (int32_t head = 0; head < item.group; ++head) s.seen[row * item.group + head] = seen;
  }
}

// Writes out = acc / sum, or the state when the call is not the last.
template <typename Vector>
void store_rows(const AttentionItem& item, const FmaScratch& s) {
  const int32_t head_dim = item.head_dim;
  for (int32_t m = 0; m < item.num_rows * item.group; ++m) {
    const int32_t row = m / item.group;
    const int32_t head = m % item.group;
    const int64_t target = row * item.row_stride + static_cast<int64_t>(head) * head_dim;
    const float* acc = s.acc + static_cast<int64_t>(m) * head_dim;
    if (item.last) {
      // A row that saw no token has sum 0 and acc 0; dividing by 1 makes it 0.
      const float sum = s.sum[m] == 0.0f ? 1.0f : s.sum[m];
      for (int32_t d = 0; d < head_dim; d += Vector::kLanes) {
        Vector::store_bf16(item.out + target + d,
                           Vector::div(Vector::load(acc + d), Vector::broadcast(sum)));
      }
    } else {
      std::memcpy(item.acc + target, acc, static_cast<size_t>(head_dim) * sizeof(float));
      item.max[row * item.state_stride + head] = s.max[m];
      item.sum[row * item.state_stride + head] = s.sum[m];
    }
  }
}

// The tiles of the item, chunk by chunk in ascending order, into the state in `s`.
template <typename Vector>
void walk(const AttentionItem& item, const FmaScratch& s) {
  const int32_t num_query_rows = item.num_rows * item.group;
  const int32_t head_dim = item.head_dim;
  TileCursor cursor(item);
  const auto take = [&cursor](Chunk& to) { to.num_tiles = cursor.take(to.tiles, kChunkTiles); };
  Chunk chunk;
  Chunk next;
  for (take(chunk); chunk.num_tiles > 0; chunk = next) {
    take(next);  // one chunk ahead, so that load_chunk can prefetch it
    load_chunk<Vector>(item, chunk, next, s);
    count_seen(item, chunk, s);
    // Rows before `begin` see nothing of this chunk; rounded down to a whole group of kMaxRows.
    int32_t begin = first_row_that_sees(item, chunk.tiles[0].position) * item.group;
    begin -= begin % Vector::kMaxRows;
    // Phase by phase over all rows: K and V of the chunk stay in cache.
    for (int32_t m = begin; m < num_query_rows; m += Vector::kMaxRows) {
      score_rows<Vector, Vector::kMaxRows>(s, m, min_of(Vector::kMaxRows, num_query_rows - m),
                                           head_dim, item.scale, chunk.num_tiles);
    }
    softmax_rows<Vector>(s, begin, num_query_rows, chunk.num_tiles);
    for (int32_t m = begin; m < num_query_rows; m += Vector::kMaxRows) {
      value_rows<Vector, Vector::kMaxRows>(s, m, min_of(Vector::kMaxRows, num_query_rows - m),
                                           head_dim);
    }
  }
}

// One item: rows and state in, tiles and columns, results out.
template <typename Vector>
void run_item(const AttentionItem& item, std::byte* scratch) {
  const FmaScratch s = carve(scratch, item.num_rows * item.group, item.head_dim);
  load_rows<Vector>(item, s);
  walk<Vector>(item, s);
  if (item.columns != nullptr) walk<Vector>(*item.columns, s);
  store_rows<Vector>(item, s);
}

template <typename Vector>
constexpr AttentionKernel make_fma_attention() {
  return {
      .max_query_rows = kMaxQueryRows, .scratch_bytes = fma_scratch_bytes, .run = run_item<Vector>};
}

}  // namespace
}  // namespace sluice
