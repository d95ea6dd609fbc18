// Attention over paged KV blocks with a carried softmax state (docs/adr/0009).
//
// Used by attention/executor only. One call attends a set of query rows to one run of KV tokens; a
// long history is several calls, and where a run lives (pool, ring slot) never changes a bit:
//
//   for each row, tiles of kAttentionTile tokens at absolute positions 0, 16, 32, ... are visited
//   in ascending order, and each updates (max, sum, acc) once. Splitting the walk between tiles and
//   carrying the state is therefore the same arithmetic as not splitting it. On the CPU backend a
//   row's result does not depend on the other rows of the call either.
//
// Thread rule: enqueue only.
#pragma once

#include <cstdint>
#include <variant>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/kv_blocks.h"

namespace sluice {

// Tokens per softmax update. Runs and pages begin at multiples of it; block_tokens is a multiple.
inline constexpr int32_t kAttentionTile = 16;

// Rows of a query tile and tokens of a KV tile of a TileMask.
inline constexpr int32_t kMaskTileTokens = 128;

// Tiles of a TileMask that hold this many rows or tokens.
constexpr int64_t mask_tiles_of(int64_t tokens) {
  return (tokens + kMaskTileTokens - 1) / kMaskTileTokens;
}

// Softmax state of each (row, query head) between calls.
//   max: largest score seen (natural-log units, after scaling); -inf before the first token
//   sum: sum of exp(score - max)
//   acc: sum of exp(score - max) * v
// The log-sum-exp of a row is max + ln(sum); this is the one place that defines it.
struct AttentionState {
  TensorView acc;  // f32 [num_rows, num_q_heads, head_dim]
  TensorView max;  // f32 [num_rows, num_q_heads]
  TensorView sum;  // f32 [num_rows, num_q_heads]
};

// Pages to attend instead of all tokens: sorted, unique page ids.
// Page p holds tokens [p * page_tokens, (p + 1) * page_tokens) of its sequence. Pages or parts of
// pages outside [kv_begin, kv_end) are skipped, so that one list serves a split walk; tokens after
// a row's own position stay invisible to it as always.
//
// There is a list for each sequence, KV head (or one for all of them) and query page: rows whose
// absolute position / q_page_tokens is the same share a list, and list 0 is that of first_pos. With
// q_page_tokens 0 one list serves all rows of a sequence (decode).
//
// Page p is found through block_table. Copies of pages are GatheredPages.
struct PageList {
  TensorView page_ids;        // i32 [num_seqs, num_kv_heads or 1, num_q_pages, max_pages]
  TensorView page_count;      // i32 [num_seqs, num_kv_heads or 1, num_q_pages]
  int32_t page_tokens = 0;    // multiple of kAttentionTile; block_tokens is a multiple of it
  int32_t q_page_tokens = 0;  // multiple of kAttentionTile, or 0: num_q_pages is 1
  // Of copies and of attention over them: entries [first_entry, first_entry + num_entries) of each
  // list. Attention to pages in place does not read these.
  int32_t first_entry = 0;
  int32_t num_entries = 0;
};

// Listed pages that have been copied, each a block of its own. Without `places` entries
// [first_entry, first_entry + num_entries) of each list lie side by side
// (ops/pages/gather_pages.h): entry first_entry + j of KV head h is head h of block j of `kv`,
// whose block_tokens is page_tokens; other entries are skipped, and the bits are those of the pages
// in place; num_seqs and num_q_pages are 1 (on CUDA num_rows, too: kUnsupported). The calls for the
// parts of one list follow one another on the stream, with no other attention in between.
//
// Pages that have `places` lie anywhere: entry j of KV head h of sequence s is head h of block
// places[s][h][0][j] of `kv`. Then num_seqs may be larger, and the whole list is one part
// (first_entry 0, no list longer than max_places). Places of entries that are skipped are not read.
struct GatheredPages {
  PageList list;
  TensorView places;  // i32 [num_seqs, num_kv_heads, 1, max_places]; absent: side by side
  int32_t source_block_tokens = 0;  // block_tokens of the blocks the pages came from; what divides
                                    // it fixes the order of sums on CUDA
};

// Tiles to attend instead of all tokens, for prefill: bit b of word w of entry [s][h][i] is set
// when query tile first_q_tile + i of sequence s attends to KV tile 32 w + b. Tiles are
// kMaskTileTokens rows or tokens at absolute positions, and the tiles of all rows of the call
// have an entry. A bit serves calls of every run: tiles or parts of tiles outside [kv_begin,
// kv_end) are skipped, and tokens after a row's own position stay invisible to it. With all
// bits set the result has the bits of a call without a mask. There are no masks per query head: at
// equal tiles masks per KV head capture as much mass, and K and V are moved per KV head. On CUDA
// the first of several rows of a sequence is at a multiple of kMaskTileTokens, and a single row
// with a mask has the bits of prefill, not of decode.
struct TileMask {
  TensorView bits;  // i32 [num_seqs, list_heads, num_q_tiles, num_words]; list_heads: 1 for all
                    // heads, or num_kv_heads
  int32_t first_q_tile = 0;

  bool present() const { return bits.present(); }
};

// Single tokens that prefill attends beside the tiles of a mask, with keys and values gathered side
// by side (`gather_columns`). The rows of a segment, segment_tokens rows at an absolute multiple of
// it, share their columns. Columns are visited after all tiles, in ascending order, so they belong
// to the call with `last`, whatever its run is. A row skips a column after its own position or from
// kv_end on, and a column whose KV tile is set for the row's query tile: it was attended there.
// CUDA visits tiles of kMaskTileTokens columns, less those of which no row of a query tile keeps
// one; the CPU visits the columns that a query tile keeps side by side.
struct TileColumns {
  TensorView positions;  // i32 [list_heads, num_segments, max_columns], ascending and unique;
                         // list_heads as in the mask; max_columns a multiple of kMaskTileTokens
  TensorView count;      // i32 [list_heads, num_segments]: columns of the segment
  TensorView kv;  // bf16 [num_segments, num_kv_heads, 2 (K, V), max_columns, head_dim]; rows from
                  // `count` up to the next multiple of kMaskTileTokens are 0
  int32_t segment_tokens = 0;  // a multiple of kMaskTileTokens
  int32_t first_segment = 0;   // the segment of entry 0; entries cover all rows of the call

  bool present() const { return positions.present(); }
};

struct MaskedTiles {
  TileMask mask;
  TileColumns columns;  // absent: tiles alone
};

struct AllTokens {};

// What a call attends, of the tokens that a row may see. Policies make all but the copies of pages.
using Selection = std::variant<AllTokens, PageList, GatheredPages, MaskedTiles>;

// The alternative of a selection that a caller asks for, or null.
inline const MaskedTiles* masked_in(const Selection& selection) {
  return std::get_if<MaskedTiles>(&selection);
}
inline const GatheredPages* gathered_in(const Selection& selection) {
  return std::get_if<GatheredPages>(&selection);
}
// Lists of pages, in place or gathered.
inline const PageList* listed_in(const Selection& selection) {
  const GatheredPages* gathered = gathered_in(selection);
  return gathered != nullptr ? &gathered->list : std::get_if<PageList>(&selection);
}

// The rows and sequences of one pass: made once by engine/runner, read by every layer.
// All arrays are device memory; the two maxima are host knowledge that sizes the launch.
struct AttentionBatch {
  TensorView row_begin;  // i32 [num_seqs + 1]: rows of sequence s: [row_begin[s], row_begin[s+1])
  TensorView first_pos;  // i32 [num_seqs]: absolute position of the first row of s
  int32_t max_rows = 0;  // largest number of rows of one sequence
  int32_t max_kv_tokens = 0;  // longest context, rows included, or more; no run is longer
};

// Queries for keys of other chunks than the row's own, where keys repeat their positions every
// chunk_tokens (ops/rows/rope.h, RopeZone). A row of chunk m has `q` for keys from m * chunk_tokens
// on, `before` for those of chunk m - 1, and `far` for all before it; for columns, too.
struct QueryZones {
  TensorView before;         // bf16, as q
  TensorView far;            // bf16, as q
  int32_t chunk_tokens = 0;  // a multiple of block_tokens (of the blocks that gathered pages came
                             // from) and of kMaskTileTokens

  bool present() const { return before.present(); }
};

struct AttentionArgs {
  TensorView q;        // bf16 [num_rows, num_q_heads, head_dim], after rope
  TensorView out;      // bf16 [num_rows, num_q_heads, head_dim]; written when `last`
  QueryZones zones;    // absent: `q` for all keys; present: `state` is, too, on the CPU
  float scale = 1.0f;  // score = scale * q.k

  AttentionBatch batch;
  KvBlocksView kv;
  TensorView kv_begin;     // i32 [num_seqs]: first token position of this run; multiple of the tile
                           // and of block_tokens
  TensorView kv_end;       // i32 [num_seqs]: one past the last; rows see tokens <= their position
  TensorView block_table;  // i32 [num_seqs, max_blocks]: entry j is the index in `kv` of the block
                           // that holds tokens kv_begin[s] + [j, j + 1) * block_tokens; absent for
                           // GatheredPages
  Selection selection;     // num_seqs is 1 for columns

  AttentionState state;  // needed unless first && last
  bool first = true;     // start from the empty state instead of reading it; a sequence whose run
                         // begins at token 0 always does, unless first_entry says that the call
                         // is a later part of gathered pages
  bool last = true;      // write out = acc / sum instead of the state; a row that saw no token is 0
};

// Attends every query row to the tokens of its sequence's run that it may see.
// Shapes: num_q_heads is a multiple of num_kv_heads; query head h reads KV head h / group, and K
// and V are never expanded. head_dim is a multiple of 16, at most 256.
// Types: scores, state and sums in f32. P is not rounded below f32 on scalar, AVX2 and AVX-512; on
// AMX and CUDA it is rounded to bf16 for the product with V, and not for the sum.
// Order: on the CPU decode and prefill rows have the same bits on one ISA; AVX2 and AVX-512 agree
// too. A token that a row may not see, or has not listed, has no influence, NaN or not. (On CUDA,
// prefill promises this for keys, for tokens in blocks from kv_end on, and for tiles, of tokens or
// of columns, of which none of the rows side by side sees any: a NaN in a value reaches other rows
// that visit the same tile.)
// Tables (batch, kv_begin, kv_end, block_table) are written by the host or by copies, never by a
// kernel: on CUDA they are read before earlier kernels of the stream have ended.
// Aliasing: `out` may be the memory of `q`.
// Errors: on CUDA the call throws kUnsupported for gathered pages with several rows a sequence, in
// prefill and with a mask for a scale that is not above 0, with zones in prefill for
// lists, and for more columns and query tiles than its scratch has room for (64 MiB: 8192 query
// tiles of 8 list heads with 6K columns each). On CUDA a stream whose first call is captured has an
// asynchronous kDevice (prepare_ops). Source: Milakov and Gimelshein 2018, arXiv 1805.02867 (online
// softmax); Dao 2023, arXiv 2307.08691.
void attention(Stream& stream, const AttentionArgs& args);

}  // namespace sluice
