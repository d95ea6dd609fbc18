// Columns beside a tile mask: single tokens that prefill attends exactly (TileColumns).
//
// A segment's columns are the tokens with the most softmax mass among the tokens that its rows may
// choose from, by scores of probe rows. Counts of mass are integers, so that the order of additions
// cannot change a choice. The ops follow score_tiles and tile_masses (ops/tiles/tile_selection.h):
// score_columns and select_columns choose, gather_columns copies, subtract_columns takes what the
// columns hold off the masses of tiles before select_tiles. Tables are written as in
// ops/attention/attention.h: never by a kernel. Thread rule: enqueue only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/tiles/tile_rule.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

// The unit of a score: the whole mass of one probe row. Sums end at kMaxColumnScore.
inline constexpr uint32_t kColumnOne = uint32_t{1} << 24;
inline constexpr uint32_t kMaxColumnScore = 0x7fffffffu;

struct ScoreColumnsArgs {
  TensorView vectors;  // bf16 [num_q_heads, num_probes, head_dim]: those of score_tiles, kRows
  TensorView lse;      // f32 [num_q_heads, num_probes]: that of tile_masses
  int32_t rows_per_tile = 4;  // of score_tiles
  AttentionBatch batch;       // as in score_tiles
  TileRows rows;              // begin at a segment
  float scale = 1.0f;
  KvBlocksView kv;         // a run of keys, as in ScoreTilesArgs
  TensorView kv_begin;     // i32 [1]: multiple of kMaskTileTokens
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]
  int32_t segment_tokens = 0;
  TensorView scores;  // i32 [num_list_heads, num_segments, num_positions]
};

// The probe of a query tile whose scores count for columns: one is enough, and successive tiles
// take probes of successive parts.
constexpr int32_t column_probe(int32_t q_tile, int32_t rows_per_tile) {
  return q_tile % rows_per_tile;
}

// scores[h, s, j] = the sum over the query tiles of segment s of `rows` and the heads of list h of
// floor(kColumnOne * min(1, exp(score(x, j) - lse[x]))), x the tile's column_probe, for the
// positions j of the run's tiles; at most kMaxColumnScore. 0 where x does not see j or is not
// usable. All tiles are scored, also those that lse knows nothing of (ScoreTilesArgs::visits).
// Shapes: num_probes = rows_per_tile * rows.num_q_tiles(); num_segments covers `rows`;
// num_positions is a multiple of kMaskTileTokens and covers kv_end; num_list_heads is 1 or
// num_kv_heads; segment_tokens is a multiple of kMaskTileTokens.
// Types: scores of keys in f32 as in score_tiles, sums exact.
// Aliasing: `scores` overlaps nothing.
// Order: after tile_masses, in stream order; calls for several runs in any order.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported unless head_dim is a multiple of 8
// and 128 keys fit shared memory; an asynchronous error names a KV tile that has no scores.
// Source: columns of sampled rows as in Zhu et al. 2024, arXiv 2406.15486 (SampleAttention).
void score_columns(Stream& stream, const ScoreColumnsArgs& args);

// Which positions may become columns of a segment, and how many of them.
struct ColumnRule {
  int32_t sink_tokens = 128;     // positions before it may not: their tiles are always attended
  int32_t recent_tokens = 128;   // nor may those from the segment's begin less recent_tokens on,
  bool to_segment_end = false;   // unless all of the segment's positions may
  int32_t threshold_tokens = 0;  // a segment that begins before it has none
  // Not 0: columns are also at most this share, of kMassOne, of the keys up to the segment's end.
  uint32_t key_share = 0;

  // Columns of a segment at most, of a list that may have `max_count`.
  constexpr int64_t most_columns(int64_t max_count, int64_t num_keys) const {
    return key_share == 0 ? max_count : std::min(max_count, share_of_keys(key_share, num_keys));
  }
};

struct SelectColumnsArgs {
  TensorView scores;          // i32 [num_list_heads, num_segments, num_positions]
  TensorView max_count;       // i32 [num_list_heads]: columns of a segment at most, see rule
  AttentionBatch batch;       // as in score_tiles
  int32_t first_segment = 0;  // of `scores`
  ColumnRule rule;
  TileColumns columns;  // `positions` and `count` of the segments of `scores` are written
  // Absent, or i64 [num_list_heads, num_segments]: the sums of all scores, of score_lines.
  TensorView totals;
  uint32_t share = kMassOne;  // of the total: what columns and other positions are to hold
};

// Writes the positions with the largest scores: of equal scores the lower positions, of score 0
// none; ascending. With totals only as many as it takes to leave at most 1 - share of the total to
// the positions that may become columns and did not; the one that crosses is taken.
// Shapes: max_count at most columns.max_columns; columns has entries for the segments of scores.
// Types: i32.
// Aliasing: columns overlap nothing else.
// Order: after score_columns (or add_lines) of all runs up to the batch's last row.
// Errors: those of every op (ops/ops.h). On CUDA an asynchronous error names a segment that has too
// many columns or too few scores.
void select_columns(Stream& stream, const SelectColumnsArgs& args);

struct GatherColumnsArgs {
  TileColumns columns;
  int32_t first_segment = 0;  // of num_segments whose columns are copied
  int32_t num_segments = 0;
  KvBlocksView kv;         // a run of keys and values, as in ScoreTilesArgs
  TensorView kv_begin;     // i32 [1]
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]
};

// Copies the keys and values of the columns in the run into columns.kv, and writes zeros from
// `count` up to the next multiple of kMaskTileTokens.
// Shapes: those of TileColumns.
// Types: bytes of bf16 keys and values.
// Aliasing: columns.kv overlaps nothing.
// Order: after select_columns; calls for several runs in any order.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported unless head_dim is a multiple of 8.
void gather_columns(Stream& stream, const GatherColumnsArgs& args);

struct SubtractColumnsArgs {
  TensorView vectors;  // as in ScoreColumnsArgs
  int32_t rows_per_tile = 4;
  AttentionBatch batch;
  TileRows rows;
  float scale = 1.0f;
  TileColumns columns;
  TileMasses masses;  // of tile_masses over the same probes; masses and column_mass change
};

// Takes the mass of each column off its tile's mass, which ends at 0, and adds it to the query
// tile's column_mass: the mean over the tile's usable probes and the heads of the list of
// exp(score(x, column) - lse[x]), 0 where x does not see the column, rounded down to a multiple of
// 1 / kMassOne. Both end at kMassOne: a column of a tile that lse knows nothing of may have more.
// Shapes: num_probes = rows_per_tile * rows.num_q_tiles(); num_list_heads is 1 or num_kv_heads and
// the same for columns and masses.
// Types: scores in f32 as in score_tiles; masses are i32.
// Aliasing: the masses overlap nothing else.
// Order: after gather_columns of all runs, once for each tile_masses.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported as for score_columns; an
// asynchronous error names a query tile whose segment has no columns.
void subtract_columns(Stream& stream, const SubtractColumnsArgs& args);

}  // namespace sluice
