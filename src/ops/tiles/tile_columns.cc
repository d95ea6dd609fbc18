// The shape contracts of the ops of columns.
#include "ops/tiles/tile_columns.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"
#include "ops/tiles/tile_contract.h"

namespace sluice {
namespace {

void check_columns(const TileColumns& columns, ShapeContract& shapes) {
  shapes.expect("columns.positions", columns.positions, DType::kI32,
                {"num_list_heads", "num_column_segments", "max_columns"});
  shapes.expect("columns.count", columns.count, DType::kI32,
                {"num_list_heads", "num_column_segments"});
  shapes.require(columns.segment_tokens > 0 && columns.segment_tokens % kMaskTileTokens == 0,
                 "columns.segment_tokens must be a multiple of kMaskTileTokens");
}

void check_column_kv(const TileColumns& columns, ShapeContract& shapes) {
  shapes.expect("columns.kv", columns.kv, DType::kBF16,
                {"num_column_segments", "num_kv_heads", "2", "max_columns", "head_dim"});
  shapes.require(
      shapes["num_list_heads"] == 1 || shapes["num_list_heads"] == shapes["num_kv_heads"],
      "num_list_heads must be 1 or num_kv_heads");
}

// `count` segments from `first` on have entries.
void check_segments(const TileColumns& columns, int64_t first, int64_t count,
                    ShapeContract& shapes) {
  const int64_t entry = first - columns.first_segment;
  shapes.require(entry >= 0 && entry + count <= shapes["num_column_segments"],
                 "columns must have an entry for every segment");
}

// Probe rows of score_tiles.
void check_probe_rows(const TensorView& vectors, int32_t rows_per_tile, const TileRows& rows,
                      ShapeContract& shapes) {
  check_rows(rows, shapes);
  shapes.require(rows_per_tile > 0, "rows_per_tile must be positive");
  shapes.bind("num_probes", int64_t{rows.num_q_tiles()} * rows_per_tile);
  shapes.expect("vectors", vectors, DType::kBF16, {"num_q_heads", "num_probes", "head_dim"});
}

}  // namespace

void score_columns(Stream& stream, const ScoreColumnsArgs& args) {
  ShapeContract shapes("score_columns");
  check_batch_of_one(args.batch, shapes);
  check_probe_rows(args.vectors, args.rows_per_tile, args.rows, shapes);
  shapes.expect("lse", args.lse, DType::kF32, {"num_q_heads", "num_probes"});
  check_key_run_blocks(args.kv, shapes);
  check_key_run_tables(args, shapes);
  shapes.expect("scores", args.scores, DType::kI32,
                {"num_list_heads", "num_segments", "num_positions"});
  const int64_t num_kv_heads = args.kv.shape.num_kv_heads;
  shapes.require(shapes["num_q_heads"] % num_kv_heads == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  shapes.require(shapes["num_list_heads"] == 1 || shapes["num_list_heads"] == num_kv_heads,
                 "num_list_heads must be 1 or num_kv_heads");
  shapes.require(args.segment_tokens > 0 && args.segment_tokens % kMaskTileTokens == 0,
                 "segment_tokens must be a multiple of kMaskTileTokens");
  shapes.require(args.rows.count <= shapes["num_segments"] * args.segment_tokens,
                 "scores must have a segment for all rows");
  shapes.require(shapes["num_positions"] % kMaskTileTokens == 0,
                 "num_positions must be a multiple of kMaskTileTokens");
  ops_of(stream.device()).score_columns(stream, args);
}

void select_columns(Stream& stream, const SelectColumnsArgs& args) {
  ShapeContract shapes("select_columns");
  check_batch_of_one(args.batch, shapes);
  shapes.expect("scores", args.scores, DType::kI32,
                {"num_list_heads", "num_segments", "num_positions"});
  shapes.expect("max_count", args.max_count, DType::kI32, {"num_list_heads"});
  shapes.expect_or_absent("totals", args.totals, DType::kI64, {"num_list_heads", "num_segments"});
  shapes.require(args.share <= kMassOne, "share must be at most kMassOne");
  check_columns(args.columns, shapes);
  check_segments(args.columns, args.first_segment, shapes["num_segments"], shapes);
  ops_of(stream.device()).select_columns(stream, args);
}

void gather_columns(Stream& stream, const GatherColumnsArgs& args) {
  ShapeContract shapes("gather_columns");
  shapes.bind("1", 1);
  shapes.bind("2", 2);
  shapes.bind("num_kv_heads", args.kv.shape.num_kv_heads);
  shapes.bind("head_dim", args.kv.shape.head_dim);
  check_columns(args.columns, shapes);
  check_column_kv(args.columns, shapes);
  check_segments(args.columns, args.first_segment, args.num_segments, shapes);
  check_key_run_tables(args, shapes);
  ops_of(stream.device()).gather_columns(stream, args);
}

void subtract_columns(Stream& stream, const SubtractColumnsArgs& args) {
  ShapeContract shapes("subtract_columns");
  check_batch_of_one(args.batch, shapes);
  check_probe_rows(args.vectors, args.rows_per_tile, args.rows, shapes);
  check_columns(args.columns, shapes);
  check_column_kv(args.columns, shapes);
  shapes.require(shapes["num_q_heads"] % shapes["num_kv_heads"] == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  shapes.expect("masses.lse", args.masses.lse, DType::kF32, {"num_q_heads", "num_probes"});
  shapes.bind("num_entries", args.rows.num_q_tiles());
  shapes.expect("masses.masses", args.masses.masses, DType::kI32,
                {"num_list_heads", "num_entries", "num_kv_tiles"});
  shapes.expect("masses.column_mass", args.masses.column_mass, DType::kI32,
                {"num_list_heads", "num_entries"});
  ops_of(stream.device()).subtract_columns(stream, args);
}

}  // namespace sluice
