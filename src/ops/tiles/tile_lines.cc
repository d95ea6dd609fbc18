// The shape contracts of the ops of lines.
#include "ops/tiles/tile_lines.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"
#include "ops/tiles/tile_contract.h"

namespace sluice {
void score_line_rows(Stream& stream, const ScoreLineRowsArgs& args) {
  ShapeContract shapes("score_line_rows");
  check_batch_of_one(args.batch, shapes);
  check_lines(args.lines, args.rows, shapes);
  shapes.expect("q", args.q, DType::kBF16, {"num_rows", "num_q_heads", "head_dim"});
  shapes.require(shapes["num_q_heads"] % args.kv.shape.num_kv_heads == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  check_key_run_blocks(args.kv, shapes);
  check_key_run_tables(args, shapes);
  shapes.require(!args.is_pooled || args.kv.shape.block_tokens % kMaskTileTokens == 0,
                 "block_tokens must be a multiple of kMaskTileTokens for pools of a tile");
  const char* num_probes = args.is_pooled ? "num_segments" : "num_probes";
  shapes.expect("vectors", args.vectors, DType::kBF16, {"num_q_heads", num_probes, "head_dim"});
  shapes.expect("records", args.records, DType::kF32, {"num_q_heads", num_probes, "num_kv_tiles"});
  ops_of(stream.device()).score_line_rows(stream, args);
}

void score_lines(Stream& stream, const ScoreLinesArgs& args) {
  ShapeContract shapes("score_lines");
  check_batch_of_one(args.batch, shapes);
  check_lines(args.lines, args.rows, shapes);
  shapes.expect("vectors", args.vectors, DType::kBF16, {"num_q_heads", "num_probes", "head_dim"});
  shapes.expect("records", args.records, DType::kF32,
                {"num_q_heads", "num_probes", "num_kv_tiles"});
  shapes.expect("lse", args.lse, DType::kF32, {"num_q_heads", "num_probes"});
  check_key_run_blocks(args.kv, shapes);
  check_key_run_tables(args, shapes);
  shapes.expect("verticals", args.verticals, DType::kI32,
                {"num_list_heads", "num_segments", "num_positions"});
  shapes.expect("diagonals", args.diagonals, DType::kI64,
                {"num_list_heads", "num_segments", "num_kv_tiles"});
  shapes.expect_or_absent("patterns", args.patterns, DType::kI32, {"num_q_heads", "num_segments"});
  shapes.expect_or_absent("totals", args.totals, DType::kI64, {"num_list_heads", "num_segments"});
  const int64_t num_kv_heads = args.kv.shape.num_kv_heads;
  shapes.require(shapes["num_q_heads"] % num_kv_heads == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  shapes.require(shapes["num_list_heads"] == 1 || shapes["num_list_heads"] == num_kv_heads,
                 "num_list_heads must be 1 or num_kv_heads");
  shapes.require(shapes["num_positions"] % kMaskTileTokens == 0,
                 "num_positions must be a multiple of kMaskTileTokens");
  ops_of(stream.device()).score_lines(stream, args);
}

void select_diagonals(Stream& stream, const SelectDiagonalsArgs& args) {
  ShapeContract shapes("select_diagonals");
  check_batch_of_one(args.batch, shapes);
  check_lines({.segment_tokens = args.segment_tokens, .count = 1}, args.rows, shapes);
  shapes.expect("diagonals", args.diagonals, DType::kI64,
                {"num_list_heads", "num_segments", "num_kv_tiles"});
  if (args.rule.choice != TileChoice::kCoverage) {
    shapes.expect("max_count", args.max_count, DType::kI32, {"num_list_heads"});
  }
  shapes.expect_or_absent("patterns", args.patterns, DType::kI32, {"num_q_heads", "num_segments"});
  shapes.require(!args.patterns.present() || shapes["num_q_heads"] % shapes["num_list_heads"] == 0,
                 "num_q_heads must be a multiple of num_list_heads");
  shapes.expect("mask.bits", args.mask.bits, DType::kI32,
                {"1", "num_list_heads", "num_q_tiles", "num_words"});
  shapes.require(
      args.rows.first / kMaskTileTokens + args.rows.num_q_tiles() <= shapes["num_q_tiles"],
      "mask must have an entry for every query tile of rows");
  shapes.require(shapes["num_kv_tiles"] <= 32 * shapes["num_words"],
                 "mask must have a bit for every KV tile");
  shapes.bind("3", 3);
  shapes.expect("counts", args.counts, DType::kI64, {"3"});
  ops_of(stream.device()).select_diagonals(stream, args);
}

}  // namespace sluice
