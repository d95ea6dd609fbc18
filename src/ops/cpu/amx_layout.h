// The layouts of the AMX attention kernel: brings queries, state, keys and values into the form
// that tile products need, and results out of it.
//
// Included by attention/amx.cc only (see attention/kernel.h for the unnamed namespace). A block is
// 16 query rows, the columns of a tile. Thread rule: pure functions over the caller's scratch.
#pragma once

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/avx512_vector.h"

namespace sluice {
namespace {

constexpr int32_t kLanes = 16;         // query rows in a block, one a column
constexpr int32_t kAmxChunkTiles = 8;  // tiles of KV that are prepared together
constexpr int32_t kAmxQueryRows = 192;
static_assert(kAmxChunkTiles <= kRoomTiles);
constexpr int32_t kAmxDepth = 32;  // channels of a full tile product

// Everything a thread needs for one item, carved from its scratch. A block is 16 query rows.
struct AmxScratch {
  float* acc;      // [blocks][head_dim][16 rows]: O^T
  uint16_t* q;     // [blocks][padded_dim / 2][16 rows][2]: Q^T, pairs of channels side by side
  float* max;      // [blocks][16]
  float* sum;      // [blocks][16]
  int32_t* limit;  // [blocks][16]: one past the last token that the row sees
  float* scores;   // [2 blocks][chunk tiles][16 tokens][16 rows]: S^T
  uint16_t* p;     // [2 blocks][chunk tiles][8][16 rows][2]: P^T, pairs of tokens side by side
  float* alpha;    // [2 blocks][chunk tiles][16 rows]
  uint16_t* v;     // [chunk tiles][head_dim][16 tokens]: V^T
  uint16_t* k;     // [chunk tiles][16 tokens][padded_dim]: keys that can't be used in place
};

// head_dim rounded up to the depth of a tile product; queries and keys are zero there.
inline int32_t padded(int32_t head_dim) {
  return (head_dim + kAmxDepth - 1) / kAmxDepth * kAmxDepth;
}
inline int32_t num_blocks_of(int32_t rows) { return (rows + kLanes - 1) / kLanes; }

// Lays the arrays out in `scratch`, each 64-byte aligned, and gives their size in `used_bytes`.
// With a null scratch only the size is meaningful.
inline AmxScratch carve_amx(std::byte* scratch, int32_t num_query_rows, int32_t head_dim,
                            size_t* used_bytes) {
  std::byte* next = scratch;
  const auto take = [&next](int64_t num_bytes) {
    std::byte* begin = next;
    next += (num_bytes + 63) / 64 * 64;
    return begin;
  };
  const int64_t blocks = num_blocks_of(num_query_rows);
  const int64_t lanes = blocks * kLanes;
  AmxScratch s;
  s.acc = reinterpret_cast<float*>(take(lanes * head_dim * 4));
  s.q = reinterpret_cast<uint16_t*>(take(lanes * padded(head_dim) * 2));
  s.max = reinterpret_cast<float*>(take(lanes * 4));
  s.sum = reinterpret_cast<float*>(take(lanes * 4));
  s.limit = reinterpret_cast<int32_t*>(take(lanes * 4));
  s.scores = reinterpret_cast<float*>(take(2 * kAmxChunkTiles * kTileFloats * 4));
  s.p = reinterpret_cast<uint16_t*>(take(2 * kAmxChunkTiles * kTileFloats * 2));
  s.alpha = reinterpret_cast<float*>(take(2 * kAmxChunkTiles * kLanes * 4));
  s.v = reinterpret_cast<uint16_t*>(take(int64_t{kAmxChunkTiles} * head_dim * kTileTokens * 2));
  s.k = reinterpret_cast<uint16_t*>(
      take(int64_t{kAmxChunkTiles} * kTileTokens * padded(head_dim) * 2));
  *used_bytes = static_cast<size_t>(next - scratch);
  return s;
}

// By a dry run of the carving, so that the two cannot disagree.
inline size_t amx_scratch_bytes(int32_t num_query_rows, int32_t head_dim) {
  size_t used_bytes = 0;
  carve_amx(nullptr, num_query_rows, head_dim, &used_bytes);
  return used_bytes;
}

// The memory of query row m: offsets into q and out, and into max and sum.
struct RowPlace {
  int64_t channel;
  int64_t state;
};

inline RowPlace row_place(const AttentionItem& item, int32_t m) {
  const int32_t row = m / item.group;
  const int32_t head = m % item.group;
  return {row * item.row_stride + static_cast<int64_t>(head) * item.head_dim,
          row * item.state_stride + head};
}

// ---- Phase 0: queries and state in -------------------------------------------------------------

// Transposes 16 query rows into the columns of a block. A column without a query row gets q = 0
// and, in set_limits, a limit beyond every token, so that it never makes a tile need masking.
void load_queries(const AttentionItem& item, const AmxScratch& s, int32_t block) {
  const int32_t num_query_rows = item.num_rows * item.group;
  for (int32_t d = 0; d < item.head_dim; d += kAmxDepth) {
    const int32_t pairs = min_of(16, (item.head_dim - d) / 2);
    const auto mask = static_cast<__mmask16>((1u << pairs) - 1u);
    __m512i r[16];
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const int32_t m = block * kLanes + lane;
      r[lane] = m < num_query_rows
                    ? _mm512_maskz_loadu_epi32(mask, item.q + row_place(item, m).channel + d)
                    : _mm512_setzero_si512();
    }
    transpose_16x16(r);
    uint16_t* to = s.q + (static_cast<int64_t>(block) * padded(item.head_dim) + d) * kLanes;
    for (int32_t i = 0; i < 16; ++i) _mm512_store_si512(to + i * 2 * kLanes, r[i]);
  }
}

// Brings max, sum and acc of a block in, or the empty state (-inf, 0, 0) for the first call.
void load_state(const AttentionItem& item, const AmxScratch& s, int32_t block) {
  const int32_t num_query_rows = item.num_rows * item.group;
  float* acc = s.acc + static_cast<int64_t>(block) * item.head_dim * kLanes;
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    const int32_t m = block * kLanes + lane;
    const bool carried = !item.first && m < num_query_rows;
    s.max[m] = carried ? item.max[row_place(item, m).state] : -__builtin_inff();
    s.sum[m] = carried ? item.sum[row_place(item, m).state] : 0.0f;
  }
  for (int32_t d = 0; d < item.head_dim; d += kLanes) {
    __m512i r[16];
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const int32_t m = block * kLanes + lane;
      const bool carried = !item.first && m < num_query_rows;
      r[lane] = carried ? _mm512_loadu_si512(item.acc + row_place(item, m).channel + d)
                        : _mm512_setzero_si512();
    }
    transpose_16x16(r);
    for (int32_t i = 0; i < 16; ++i) _mm512_store_si512(acc + (d + i) * kLanes, r[i]);
  }
}

// How far each row of all blocks sees in the walk of `item`.
void set_limits(const AttentionItem& item, const AmxScratch& s, int32_t num_blocks) {
  const int32_t num_query_rows = item.num_rows * item.group;
  for (int32_t m = 0; m < num_blocks * kLanes; ++m) {
    s.limit[m] = m < num_query_rows ? row_limit(item, m / item.group) : INT32_MAX;
  }
}

// ---- Phase 1: a chunk of KV --------------------------------------------------------------------

// Tiles prepared together, and where the tile product finds the keys of each.
struct AmxChunk {
  Tile tiles[kAmxChunkTiles];
  int32_t num_tiles;
  const uint16_t* keys[kAmxChunkTiles];
  int64_t key_stride_bytes[kAmxChunkTiles];
  bool finite_values[kAmxChunkTiles];  // no NaN or infinity among the tile's values
};

// Whole tiles are read where they lie. The last tile of a run and odd head dims are copied, padded
// with zeros, since a tile load always reads 16 rows of 64 bytes.
void prepare_keys(const TileSource& source, int32_t head_dim, int32_t tile, const AmxScratch& s,
                  AmxChunk& chunk) {
  const int32_t width = padded(head_dim);
  chunk.keys[tile] = source.k;
  chunk.key_stride_bytes[tile] = int64_t{2} * width;
  if (source.num_tokens == kTileTokens && width == head_dim) return;
  uint16_t* copy = s.k + static_cast<int64_t>(tile) * kTileTokens * width;
  std::memset(copy, 0, static_cast<size_t>(kTileTokens) * width * 2);
  for (int32_t t = 0; t < source.num_tokens; ++t) {
    std::memcpy(copy + t * width, source.k + static_cast<int64_t>(t) * head_dim,
                static_cast<size_t>(head_dim) * 2);
  }
  chunk.keys[tile] = copy;
}

// v[tokens][head_dim] to to[head_dim][16 tokens]; tokens that are not there become 0. Pairs of
// tokens are interleaved first, so that the transpose moves 32-bit numbers. Returns whether all
// values are finite.
bool transpose_values(const TileSource& source, int32_t head_dim, uint16_t* to,
                      TilePrefetch& ahead) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i largest = _mm512_setzero_si512();
  for (int32_t d = 0; d < head_dim; d += 32) {
    ahead.step(16);
    const int32_t width = min_of(32, head_dim - d);
    const auto mask = static_cast<__mmask32>(width == 32 ? ~0u : (1u << width) - 1u);
    __m512i r[16];
#pragma GCC unroll 8
    for (int32_t pair = 0; pair < 8; ++pair) {
      const uint16_t* from = source.v + static_cast<int64_t>(2 * pair) * head_dim + d;
      const int32_t left = source.num_tokens - 2 * pair;
      const __m512i even = _mm512_maskz_loadu_epi16(left > 0 ? mask : 0, from);
      const __m512i odd = _mm512_maskz_loadu_epi16(left > 1 ? mask : 0, from + head_dim);
      largest = _mm512_max_epu16(largest, _mm512_and_si512(even, magnitude));
      largest = _mm512_max_epu16(largest, _mm512_and_si512(odd, magnitude));
      r[pair] = _mm512_unpacklo_epi16(even, odd);
      r[8 + pair] = _mm512_unpackhi_epi16(even, odd);
    }
    transpose_16x16(r);
    // Unpacking works in 128-bit lanes: column c of the lower rows is channel 8 (c / 4) + c mod 4,
    // that of the upper rows four further.
#pragma GCC unroll 16
    for (int32_t c = 0; c < 16; ++c) {
      const int32_t channel = c / 4 * 8 + c % 4;
      if (channel >= width) continue;
      uint16_t* row = to + static_cast<int64_t>(d + channel) * kTileTokens;
      _mm256_store_si256(reinterpret_cast<__m256i*>(row), _mm512_castsi512_si256(r[c]));
      _mm256_store_si256(reinterpret_cast<__m256i*>(row + 4 * kTileTokens),
                         _mm512_extracti64x4_epi64(r[c], 1));
    }
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0;
}

// Prepares all tiles of `chunk` and prefetches those of `next`, whose loads then hit the cache.
void prepare_chunk(const AttentionItem& item, AmxChunk& chunk, const AmxChunk& next,
                   const AmxScratch& s) {
  for (int32_t tile = 0; tile < chunk.num_tiles; ++tile) {
    const TileSource source = tile_source(item, chunk.tiles[tile], tile);
    TilePrefetch ahead;
    if (tile < next.num_tiles) ahead = TilePrefetch(item, next.tiles[tile]);
    prepare_keys(source, item.head_dim, tile, s, chunk);
    uint16_t* values = s.v + static_cast<int64_t>(tile) * item.head_dim * kTileTokens;
    chunk.finite_values[tile] = transpose_values(source, item.head_dim, values, ahead);
  }
}

// ---- Phase 5: results out ----------------------------------------------------------------------

// Transposes a block back and writes out = acc / sum, or the state when the call is not the last.
void store_block(const AttentionItem& item, const AmxScratch& s, int32_t block) {
  const int32_t num_lanes = min_of(kLanes, item.num_rows * item.group - block * kLanes);
  const float* acc = s.acc + static_cast<int64_t>(block) * item.head_dim * kLanes;
  const __m512 sum = _mm512_load_ps(s.sum + block * kLanes);
  // A row that saw no token has sum 0 and acc 0; dividing by 1 makes it 0.
  const __mmask16 empty = _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_EQ_OQ);
  const __m512 divisor = _mm512_mask_mov_ps(sum, empty, _mm512_set1_ps(1.0f));
  for (int32_t d = 0; d < item.head_dim; d += kLanes) {
    __m512i r[16];
    for (int32_t i = 0; i < 16; ++i) {
      const __m512 value = _mm512_load_ps(acc + (d + i) * kLanes);
      r[i] = _mm512_castps_si512(item.last ? _mm512_div_ps(value, divisor) : value);
    }
    transpose_16x16(r);
    for (int32_t lane = 0; lane < num_lanes; ++lane) {
      const int64_t target = row_place(item, block * kLanes + lane).channel + d;
      if (item.last) {
        Avx512Vector::store_bf16(item.out + target, _mm512_castsi512_ps(r[lane]));
      } else {
        _mm512_storeu_si512(item.acc + target, r[lane]);
      }
    }
  }
  for (int32_t lane = 0; lane < num_lanes && !item.last; ++lane) {
    const int32_t m = block * kLanes + lane;
    item.max[row_place(item, m).state] = s.max[m];
    item.sum[row_place(item, m).state] = s.sum[m];
  }
}

}  // namespace
}  // namespace sluice
