// Attention with AMX tiles: S^T = K Q^T and O^T = V^T P^T, so that a column is a query row.
//
// Used by ops/cpu/attention/attention.cc when the CPU has AMX; docs/kernels/cpu_attention.md has
// the theory. Every element of a tile product depends on one row of the left and one column of the
// right operand alone, so a query row has the same bits in any column of any call, and decode runs
// the same instructions with most columns empty. The product with V takes one tile of 16 tokens at
// a time (half the depth of the unit): a deeper product would add the sums of two tiles in another
// order. P is rounded to bf16, the sum of P is not. Thread rule: see attention/kernel.h.
#include "ops/cpu/amx_layout.h"

namespace sluice {
namespace {

// Tiles 0 to 3 are results, 4 and 5 left operands, 6 and 7 right operands.
constexpr TileConfig kScoreConfig{.line_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                  .num_lines = {16, 16, 16, 16, 16, 16, 16, 16}};
constexpr TileConfig kValueConfig{.line_bytes = {64, 64, 64, 64, 32, 32, 64, 64},
                                  .num_lines = {16, 16, 16, 16, 16, 16, 8, 8}};

// ---- Phase 2: scores ---------------------------------------------------------------------------

// S^T of kTiles tiles from `tile` on and kBlocks blocks from `block` on.
template <int kTiles, int kBlocks>
void score_tiles_amx(const AmxChunk& chunk, const AmxScratch& s, int32_t tile, int32_t block,
                     int32_t head_dim) {
  const int64_t block_stride = static_cast<int64_t>(padded(head_dim)) * kLanes;
  const uint16_t* q = s.q + block * block_stride;
  const uint16_t* k0 = chunk.keys[tile];
  const uint16_t* k1 = chunk.keys[tile + kTiles - 1];  // k0 again for a single tile
  const int64_t stride0 = chunk.key_stride_bytes[tile];
  const int64_t stride1 = chunk.key_stride_bytes[tile + kTiles - 1];
  _tile_zero(0);
  if constexpr (kBlocks == 2) _tile_zero(1);
  if constexpr (kTiles == 2) _tile_zero(2);
  if constexpr (kTiles == 2 && kBlocks == 2) _tile_zero(3);
  for (int32_t d = 0; d < head_dim; d += kAmxDepth, q += kAmxDepth * kLanes) {
    _tile_loadd(4, k0 + d, stride0);
    _tile_loadd(6, q, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kBlocks == 2) {
      _tile_loadd(7, q + block_stride, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTiles == 2) {
      _tile_loadd(5, k1 + d, stride1);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kBlocks == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  float* to = s.scores + tile * kTileFloats;
  constexpr int32_t kNextBlock = kAmxChunkTiles * kTileFloats;
  _tile_stored(0, to, 64);
  if constexpr (kBlocks == 2) _tile_stored(1, to + kNextBlock, 64);
  if constexpr (kTiles == 2) _tile_stored(2, to + kTileFloats, 64);
  if constexpr (kTiles == 2 && kBlocks == 2) _tile_stored(3, to + kNextBlock + kTileFloats, 64);
}

// S^T of all tiles of the chunk, unscaled, for kBlocks blocks from `block` on.
template <int kBlocks>
void score_chunk(const AmxChunk& chunk, const AmxScratch& s, int32_t block, int32_t head_dim) {
  configure_tiles(kScoreConfig);
  int32_t tile = 0;
  for (; tile + 2 <= chunk.num_tiles; tile += 2) {
    score_tiles_amx<2, kBlocks>(chunk, s, tile, block, head_dim);
  }
  if (tile < chunk.num_tiles) score_tiles_amx<1, kBlocks>(chunk, s, tile, block, head_dim);
}

// ---- Phase 3: softmax --------------------------------------------------------------------------

// How a block takes part in a tile.
struct BlockTile {
  __m512i seen;  // tokens of the tile that each row sees, 0 to 16
  bool any;      // some row sees one
  bool ragged;   // some row sees fewer than 16
};

// Per row clamp(limit - position, 0, 16).
inline BlockTile block_tile(const AmxScratch& s, int32_t block, int32_t position) {
  const __m512i limit = _mm512_load_si512(s.limit + block * kLanes);
  __m512i seen = _mm512_sub_epi32(limit, _mm512_set1_epi32(position));
  seen = _mm512_max_epi32(_mm512_min_epi32(seen, _mm512_set1_epi32(kTileTokens)),
                          _mm512_setzero_si512());
  return {seen, _mm512_test_epi32_mask(seen, seen) != 0,
          _mm512_cmplt_epi32_mask(seen, _mm512_set1_epi32(kTileTokens)) != 0};
}

// Sixteen pairs of bf16, side by side: the rows of two tokens.
inline __m512i interleave_bf16(__m512 even, __m512 odd) {
  const __m512i first = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(first, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

// One tile of one block: writes P^T and alpha from S^T and updates max and sum. Returns whether a
// maximum changed. kRagged: some row does not see all tokens.
template <bool kRagged>
bool softmax_tile(const float* scores, __m512i seen, float scale, uint16_t* p, float* alpha,
                  float* max, float* sum) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  const __m512 factor = _mm512_set1_ps(scale);
  const __m512 old_max = _mm512_load_ps(max);
  __m512 score[16];
  __m512 new_max = old_max;
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    score[t] = _mm512_mul_ps(_mm512_load_ps(scores + t * kLanes), factor);
    if constexpr (kRagged) {
      const __mmask16 visible = _mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(t));
      score[t] = _mm512_mask_mov_ps(lowest, visible, score[t]);
    }
    new_max = _mm512_max_ps(new_max, score[t]);
  }
  // Rows whose maximum stays have alpha = 1, also those that have seen nothing (-inf) so far.
  const __mmask16 moved = _mm512_cmp_ps_mask(new_max, old_max, _CMP_NEQ_UQ);
  const __m512 decay = exp_nonpositive<Avx512Vector>(_mm512_sub_ps(old_max, new_max));
  const __m512 rescale = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), moved, decay);
  // The sum of 16 weights in a fixed order: pairs of tokens, pairs 4 apart, then a tree of four.
  __m512 partial[4];
#pragma GCC unroll 8
  for (int pair = 0; pair < 8; ++pair) {
    __m512 even = exp_nonpositive<Avx512Vector>(_mm512_sub_ps(score[2 * pair], new_max));
    __m512 odd = exp_nonpositive<Avx512Vector>(_mm512_sub_ps(score[2 * pair + 1], new_max));
    if constexpr (kRagged) {
      even = _mm512_maskz_mov_ps(_mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(2 * pair)), even);
      odd =
          _mm512_maskz_mov_ps(_mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32(2 * pair + 1)), odd);
    }
    const __m512 both = _mm512_add_ps(even, odd);
    partial[pair % 4] = pair < 4 ? both : _mm512_add_ps(partial[pair % 4], both);
    _mm512_store_si512(p + pair * 2 * kLanes, interleave_bf16(even, odd));
  }
  const __m512 total =
      _mm512_add_ps(_mm512_add_ps(partial[0], partial[2]), _mm512_add_ps(partial[1], partial[3]));
  _mm512_store_ps(sum, _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(sum), rescale), total));
  _mm512_store_ps(max, new_max);
  _mm512_store_ps(alpha, rescale);
  return moved != 0;
}

// How phase 4 treats a tile, for each of the two blocks.
struct TileWork {
  bool skip[2];      // no row of the block sees it
  bool rescale[2];   // acc *= alpha first
  bool separate[2];  // rows see different tokens and some value is not finite
};

// The softmax of a block over the chunk; fills the `slot`th entry of `work`. A tile that no row
// sees is marked `skip`.
void softmax_block(const AttentionItem& item, const AmxChunk& chunk, const AmxScratch& s,
                   int32_t block, int32_t slot, TileWork* work) {
  for (int32_t tile = 0; tile < chunk.num_tiles; ++tile) {
    const BlockTile part = block_tile(s, block, chunk.tiles[tile].position);
    work[tile].skip[slot] = !part.any;
    if (!part.any) continue;
    const int32_t index = slot * kAmxChunkTiles + tile;
    const auto update = part.ragged ? softmax_tile<true> : softmax_tile<false>;
    work[tile].rescale[slot] =
        update(s.scores + index * kTileFloats, part.seen, item.scale, s.p + index * kTileFloats,
               s.alpha + index * kLanes, s.max + block * kLanes, s.sum + block * kLanes);
    work[tile].separate[slot] = part.ragged && !chunk.finite_values[tile];
  }
}

// ---- Phase 4: values ---------------------------------------------------------------------------

// acc[16 channels][16 rows] *= alpha.
inline void rescale_panel(float* acc, const float* alpha) {
  const __m512 factor = _mm512_load_ps(alpha);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    _mm512_store_ps(acc + i * kLanes, _mm512_mul_ps(_mm512_load_ps(acc + i * kLanes), factor));
  }
}

// One panel, block and tile whose values are not all finite and whose rows see different tokens:
// a zero weight would turn a hidden NaN into a visible one. Each group of rows that see the same
// tokens gets a product in which the hidden values are 0, which changes no bit of a finite result.
void separate_product(float* acc, const uint16_t* v, const uint16_t* p, __m512i seen) {
  alignas(64) uint16_t visible[kTileTokens * kTileTokens];
  alignas(64) float result[kTileFloats];
  alignas(64) float product[kTileFloats];
  std::memcpy(result, acc, sizeof(result));
  for (int32_t count = 1; count <= kTileTokens; ++count) {
    const __mmask16 rows = _mm512_cmpeq_epi32_mask(seen, _mm512_set1_epi32(count));
    if (rows == 0) continue;
    for (int32_t i = 0; i < kTileTokens * kTileTokens; ++i) {
      visible[i] = i % kTileTokens < count ? v[i] : uint16_t{0};
    }
    memory_barrier();
    _tile_loadd(0, acc, 64);
    _tile_loadd(4, visible, 32);
    _tile_loadd(6, p, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(0, product, 64);
    for (int32_t i = 0; i < kTileTokens; ++i) {
      _mm512_mask_store_ps(result + i * kLanes, rows, _mm512_load_ps(product + i * kLanes));
    }
  }
  std::memcpy(acc, result, sizeof(result));
}

// A panel pair (32 channels) or the last single panel of one or two blocks, over the whole chunk.
struct ValuePanels {
  float* acc[2];        // per block: first panel; the next is kTileFloats further
  const uint16_t* v;    // first panel of the first tile
  int64_t tile_stride;  // of v
};

// Tile registers 0 and 1 hold the first panel of the two blocks, 2 and 3 the second.
template <int kPanels, int kBlocks>
inline void load_acc(const ValuePanels& at) {
  memory_barrier();
  _tile_loadd(0, at.acc[0], 64);
  if constexpr (kBlocks == 2) _tile_loadd(1, at.acc[1], 64);
  if constexpr (kPanels == 2) _tile_loadd(2, at.acc[0] + kTileFloats, 64);
  if constexpr (kPanels == 2 && kBlocks == 2) _tile_loadd(3, at.acc[1] + kTileFloats, 64);
}

template <int kPanels, int kBlocks>
inline void store_acc(const ValuePanels& at) {
  _tile_stored(0, at.acc[0], 64);
  if constexpr (kBlocks == 2) _tile_stored(1, at.acc[1], 64);
  if constexpr (kPanels == 2) _tile_stored(2, at.acc[0] + kTileFloats, 64);
  if constexpr (kPanels == 2 && kBlocks == 2) _tile_stored(3, at.acc[1] + kTileFloats, 64);
}

// Whether all blocks need the plain product, so that the sums can stay in tile registers.
template <int kBlocks>
inline bool is_plain(const TileWork& work) {
  bool plain = true;
  for (int b = 0; b < kBlocks; ++b) {
    plain = plain && !work.skip[b] && !work.rescale[b] && !work.separate[b];
  }
  return plain;
}

// Rescaling and separate products, on sums in memory. Blocks whose product was made here are marked
// `skip`. Any alpha other than 1 costs a round trip of the sums; maxima rarely change after the
// first tiles.
template <int kPanels, int kBlocks>
void prepare_tile(const AmxChunk& chunk, const AmxScratch& s, int32_t block, int32_t tile,
                  const ValuePanels& at, TileWork& work) {
  for (int b = 0; b < kBlocks; ++b) {
    if (work.skip[b]) continue;
    const int32_t index = b * kAmxChunkTiles + tile;
    for (int panel = 0; panel < kPanels; ++panel) {
      float* acc = at.acc[b] + panel * kTileFloats;
      if (work.rescale[b]) rescale_panel(acc, s.alpha + index * kLanes);
      if (work.separate[b]) {
        separate_product(acc, at.v + tile * at.tile_stride + panel * kTileFloats,
                         s.p + index * kTileFloats,
                         block_tile(s, block + b, chunk.tiles[tile].position).seen);
      }
    }
    work.skip[b] = work.separate[b];
  }
}

// acc = acc * alpha + V^T P^T over the chunk, tile by tile in ascending order.
template <int kPanels, int kBlocks>
void value_panels_amx(const AmxChunk& chunk, const AmxScratch& s, int32_t block,
                      const ValuePanels& at, const TileWork* works) {
  load_acc<kPanels, kBlocks>(at);
  for (int32_t tile = 0; tile < chunk.num_tiles; ++tile) {
    TileWork work = works[tile];
    if (!is_plain<kBlocks>(work)) {
      store_acc<kPanels, kBlocks>(at);
      prepare_tile<kPanels, kBlocks>(chunk, s, block, tile, at, work);
      load_acc<kPanels, kBlocks>(at);
    }
    const uint16_t* v = at.v + tile * at.tile_stride;
    const uint16_t* p = s.p + tile * kTileFloats;
    _tile_loadd(4, v, 32);
    if constexpr (kPanels == 2) _tile_loadd(5, v + kTileFloats, 32);
    if (!work.skip[0]) {
      _tile_loadd(6, p, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kPanels == 2) _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kBlocks == 2) {
      if (!work.skip[1]) {
        _tile_loadd(7, p + kAmxChunkTiles * kTileFloats, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kPanels == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  store_acc<kPanels, kBlocks>(at);
}

// All panels of kBlocks blocks; head_dim is a multiple of 16, so at most one panel is single.
template <int kBlocks>
void value_chunk(const AmxChunk& chunk, const AmxScratch& s, int32_t block, int32_t head_dim,
                 const TileWork* works) {
  configure_tiles(kValueConfig);
  const int64_t block_floats = static_cast<int64_t>(head_dim) * kLanes;
  ValuePanels at{
      .acc = {s.acc + block * block_floats, s.acc + (block + kBlocks - 1) * block_floats},
      .v = s.v,
      .tile_stride = static_cast<int64_t>(head_dim) * kTileTokens};
  int32_t d = 0;
  for (; d + 32 <= head_dim; d += 32) {
    value_panels_amx<2, kBlocks>(chunk, s, block, at, works);
    for (float*& acc : at.acc) acc += 2 * kTileFloats;
    at.v += 2 * kTileFloats;
  }
  if (d < head_dim) value_panels_amx<1, kBlocks>(chunk, s, block, at, works);
}

// ---- The walk ----------------------------------------------------------------------------------

// Phases 2 to 4 of one or two blocks; two share each load of keys and values.
template <int kBlocks>
void attend_blocks(const AttentionItem& item, const AmxChunk& chunk, const AmxScratch& s,
                   int32_t block) {
  TileWork works[kAmxChunkTiles] = {};
  score_chunk<kBlocks>(chunk, s, block, item.head_dim);
  for (int32_t b = 0; b < kBlocks; ++b) softmax_block(item, chunk, s, block + b, b, works);
  value_chunk<kBlocks>(chunk, s, block, item.head_dim, works);
}

// The tiles of the item, chunk by chunk in ascending order, into the state in `s`.
void walk(const AttentionItem& item, const AmxScratch& s, int32_t num_blocks) {
  set_limits(item, s, num_blocks);
  TileCursor cursor(item);
  const auto take = [&cursor](AmxChunk& to) {
    to.num_tiles = cursor.take(to.tiles, kAmxChunkTiles);
  };
  AmxChunk chunk;
  AmxChunk next;
  for (take(chunk); chunk.num_tiles > 0; chunk = next) {
    take(next);
    prepare_chunk(item, chunk, next, s);
    // Blocks before this one see nothing of this chunk.
    int32_t block = first_row_that_sees(item, chunk.tiles[0].position) * item.group / kLanes;
    for (; block + 2 <= num_blocks; block += 2) attend_blocks<2>(item, chunk, s, block);
    if (block < num_blocks) attend_blocks<1>(item, chunk, s, block);
  }
}

// One item: state in, tiles and columns, state or output out. Tile registers are released at the
// end, since a thread with live tile data has a larger context to switch.
void run_amx_item(const AttentionItem& item, std::byte* scratch) {
  const int32_t num_query_rows = item.num_rows * item.group;
  const int32_t num_blocks = num_blocks_of(num_query_rows);
  size_t used_bytes = 0;
  const AmxScratch s = carve_amx(scratch, num_query_rows, item.head_dim, &used_bytes);
  for (int32_t block = 0; block < num_blocks; ++block) {
    load_queries(item, s, block);
    load_state(item, s, block);
  }
  walk(item, s, num_blocks);
  if (item.columns != nullptr) walk(*item.columns, s, num_blocks);
  _tile_release();
  for (int32_t block = 0; block < num_blocks; ++block) store_block(item, s, block);
}

constexpr AttentionKernel kKernel{
    .max_query_rows = kAmxQueryRows, .scratch_bytes = amx_scratch_bytes, .run = run_amx_item};

}  // namespace

const AttentionKernel& attention_kernel_amx() { return kKernel; }

}  // namespace sluice
