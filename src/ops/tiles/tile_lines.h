// Verticals and slashes: the softmax mass of single tokens and of tile diagonals, by the last rows
// of a segment, and masks from diagonals.
//
// The rows of a segment (segment_tokens rows at an absolute multiple of it) share their lines. The
// keys are walked twice: score_line_rows makes records, as score_tiles does; score_lines sums up
// probabilities in integers, so that the order of additions cannot change a choice. Verticals then
// become columns (select_columns of ops/tiles/tile_columns.h), diagonals of tiles a mask. Where
// some heads attend by tiles instead (HeadPattern, ops/tiles/head_patterns.h), they are left out of
// the sums. Tables are written as in ops/attention/attention.h: never by a kernel. Thread rule:
// enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/tiles/tile_columns.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

// The probe rows of each segment: its last `count` rows, or all if it has fewer.
struct LineRows {
  int32_t segment_tokens = 0;  // a multiple of kMaskTileTokens
  int32_t count = 64;
};

struct ScoreLineRowsArgs {
  TensorView q;          // bf16 [num_rows, num_q_heads, head_dim], after rope
  AttentionBatch batch;  // as in score_tiles
  TileRows rows;         // begin at a segment
  float scale = 1.0f;
  KvBlocksView kv;         // a run of keys, as in ScoreTilesArgs
  TensorView kv_begin;     // i32 [1]: multiple of kMaskTileTokens
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]
  LineRows lines;
  bool is_pooled = false;  // one probe for each segment: the mean of its rows against means of keys
  TensorView vectors;      // bf16 [num_q_heads, num_probes, head_dim]: receives the probe rows
  TensorView records;      // f32 [num_q_heads, num_probes, num_kv_tiles], natural log
};

// The same scores by score_tiles, whose probes stand in other places: line rows are true rows or
// pools like them.
inline ScoreTilesArgs tile_args_of(const ScoreLineRowsArgs& args) {
  const TileProbes pools{.kind = TileProbeKind::kPooled, .key_pool_tokens = kMaskTileTokens};
  return {.q = args.q,
          .batch = args.batch,
          .rows = args.rows,
          .scale = args.scale,
          .kv = args.kv,
          .kv_begin = args.kv_begin,
          .kv_end = args.kv_end,
          .block_table = args.block_table,
          .probes = args.is_pooled ? pools : TileProbes{.kind = TileProbeKind::kRows},
          .vectors = args.vectors,
          .records = args.records};
}

// records[h, x, J] as in score_tiles, where probe x is row x % lines.count of segment
// x / lines.count of `rows`; -inf for rows that do not exist. is_pooled: probe x is the mean of the
// line rows of segment x, and keys are one mean for each KV tile (TileProbeKind::kPooled).
// Shapes: num_probes = lines.count times the segments of `rows`, or is_pooled: those segments, and
// kMaskTileTokens divides block_tokens; others as in score_tiles.
// Types: products and sums in f32.
// Aliasing: `vectors` and `records` overlap nothing.
// Order: after the keys were written, in stream order; calls for several runs in any order.
// Errors: those of every op (ops/ops.h), and on CUDA those of score_tiles.
// Source: Jiang et al. 2024, arXiv 2407.02490 (MInference), estimation by the last queries.
void score_line_rows(Stream& stream, const ScoreLineRowsArgs& args);

struct ScoreLinesArgs {
  TensorView vectors;  // those of score_line_rows
  TensorView records;
  TensorView lse;        // f32 [num_q_heads, num_probes]: scratch
  AttentionBatch batch;  // as in score_line_rows
  TileRows rows;
  float scale = 1.0f;
  KvBlocksView kv;         // a run of keys, as in ScoreTilesArgs
  TensorView kv_begin;     // i32 [1]: multiple of kMaskTileTokens
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]
  LineRows lines;
  TensorView verticals;  // i32 [num_list_heads, num_segments, num_positions]
  TensorView diagonals;  // i64 [num_list_heads, num_segments, num_kv_tiles]
  TensorView patterns;   // absent, or i32 [num_q_heads, num_segments]: heads of kLines count
  TensorView totals;     // absent, or i64 [num_list_heads, num_segments]
};

// With p = floor(kColumnOne * exp(score(x, j) - lse[x])), summed over the usable probes x of
// segment s and the heads of list h:
//   verticals[h, s, j] = the sum of p, at most kMaxColumnScore, for the positions of the run
//   diagonals[h, s, D] = the sum over j of p * max(0, kMaskTileTokens - |x - j - D
//   kMaskTileTokens|)
//   totals[h, s] = the sum of p over all j
// The weight of diagonal D is the share of offset x - j in tiles (I, I - D), for rows anywhere in
// their tile. A call whose run begins at token 0 starts diagonals and totals from 0, other calls
// add to them. Rows of heads whose pattern is not kLines are not usable.
// Shapes: as in score_line_rows; num_positions is a multiple of kMaskTileTokens and covers kv_end,
// num_kv_tiles too; num_list_heads is 1 or num_kv_heads.
// Types: scores in f32 as in score_tiles, sums exact.
// Aliasing: lse, verticals, diagonals and totals overlap nothing.
// Order: after score_line_rows of all runs up to the batch's last row; the run from token 0 first.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported unless head_dim is a multiple of 8
// and 128 keys fit shared memory; an asynchronous error names a KV tile that has no records or
// verticals.
// Source: as for score_line_rows; diagonals of tiles in place of single offsets, which would touch
// two tiles a row each.
void score_lines(Stream& stream, const ScoreLinesArgs& args);

struct SelectDiagonalsArgs {
  TensorView diagonals;  // i64 [num_list_heads, num_segments, num_kv_tiles]
  TensorView max_count;  // i32 [num_list_heads]: diagonals of a segment at most, 0 and 1 included;
                         // absent if the rule's choice is kCoverage
  int32_t segment_tokens = 0;
  AttentionBatch batch;  // as in score_tiles
  TileRows rows;         // begin at a segment
  int64_t prompt_end = 0;
  // What attends everything and what is forced; kCoverage with its share and min_tiles decides how
  // many diagonals are taken, other choices leave that to max_count and key_share.
  TileRule rule;
  TileMask mask;        // as in SelectTilesArgs
  TensorView counts;    // i64 [3]: as in SelectTilesArgs; no tile is cut
  TensorView patterns;  // absent, or i32 [num_q_heads, num_segments], as in ScoreLinesArgs
};

// Sets tiles (I, I - D) of the query tiles I of `rows` for the diagonals D with the largest sums:
// of equal sums the smaller D, of sum 0 none; diagonals 0 and 1 are always set, and so are the
// tiles that the rule forces. Query tiles for which the rule says so, those of a segment whose sums
// are all 0 (no usable probe), and those of one whose tiles are no more than its diagonals at most,
// attend to everything. Other bits are 0, also those of query tiles without rows.
//
// Only diagonals that have a tile in the segment are taken or counted. kCoverage takes them until
// together with 0 and 1 they hold rule.share of all sums, the one that crosses included. A query
// tile with fewer tiles than rule.min_tiles gets those of the next diagonals in the same order, of
// sum 0 too. With patterns, lists without heads of kLines in a segment get the tiles that the rule
// forces alone, to which select_tiles adds.
// Shapes: num_segments covers `rows`; the mask as in select_tiles.
// Types: i64 sums, i32 words of bits, i64 counts.
// Aliasing: mask and counts overlap nothing.
// Order: after score_lines of all runs up to the batch's last row, in stream order.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported for more KV tiles than shared memory
// has bits of, more than 40 million tokens.
// Source: as for score_line_rows.
void select_diagonals(Stream& stream, const SelectDiagonalsArgs& args);

}  // namespace sluice
