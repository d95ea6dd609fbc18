// Where probes are, and the shape contracts of the two ops.
#include "ops/tiles/tile_selection.h"

#include <bit>

#include "core/error.h"
#include "ops/ops.h"
#include "ops/shape_contract.h"
#include "ops/tiles/tile_contract.h"

namespace sluice {

int32_t probes_per_tile(const TileProbes& probes) {
  if (probes.are_true_rows()) return probes.rows_per_tile;
  switch (probes.kind) {
    case TileProbeKind::kRows:
      break;
    case TileProbeKind::kAntidiagonal:
      return kMaskTileTokens / probes.stride;
    case TileProbeKind::kPooled:
      return kMaskTileTokens / probes.query_pool_tokens;
  }
  return 0;
}

int64_t probe_width(const TileProbes& probes, int64_t head_dim) {
  return probes.kind == TileProbeKind::kAntidiagonal ? probes.stride * head_dim : head_dim;
}

namespace {

bool is_power_of_two(int32_t value) {
  return value > 0 && std::has_single_bit(static_cast<uint32_t>(value));
}

void check_probes(const TileProbes& probes, ShapeContract& shapes) {
  if (probes.are_true_rows()) {
    shapes.require(is_power_of_two(probes.rows_per_tile) && probes.rows_per_tile <= 16,
                   "rows_per_tile must be 1, 2, 4, 8 or 16");
  }
  switch (probes.kind) {
    case TileProbeKind::kRows:
      return;
    case TileProbeKind::kAntidiagonal:
      return shapes.require(
          is_power_of_two(probes.stride) && probes.stride >= 4 && probes.stride <= 32,
          "stride must be 4, 8, 16 or 32");
    case TileProbeKind::kPooled:
      shapes.require(is_power_of_two(probes.key_pool_tokens) && probes.key_pool_tokens >= 8 &&
                         probes.key_pool_tokens <= kMaskTileTokens,
                     "key_pool_tokens must be a power of two from 8 to 128");
      return shapes.require(probes.query_pool_tokens == 0 || probes.query_pool_tokens == 1 ||
                                probes.query_pool_tokens == 16 ||
                                probes.query_pool_tokens == kMaskTileTokens,
                            "query_pool_tokens must be 0, 1, 16 or 128");
  }
}

// Keys that are taken together lie in one block.
void check_key_blocks(const ScoreTilesArgs& args, ShapeContract& shapes) {
  const KvBlockShape& kv = args.kv.shape;
  check_key_run_blocks(args.kv, shapes);
  shapes.require(kv.num_kv_heads > 0 && shapes["num_q_heads"] % kv.num_kv_heads == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  const int32_t together = args.probes.kind == TileProbeKind::kAntidiagonal ? args.probes.stride
                           : args.probes.kind == TileProbeKind::kPooled
                               ? args.probes.key_pool_tokens
                               : 1;
  shapes.require(kv.block_tokens % together == 0, "stride and pools must divide block_tokens");
}

// A mask with entries for the query tiles of `rows` and bits for num_kv_tiles.
void check_mask(const TileMask& mask, const TileRows& rows, ShapeContract& shapes) {
  shapes.expect("mask.bits", mask.bits, DType::kI32,
                {"1", "num_list_heads", "num_q_tiles", "num_words"});
  shapes.require(rows.first / kMaskTileTokens + rows.num_q_tiles() <= shapes["num_q_tiles"],
                 "mask must have an entry for every query tile of rows");
  shapes.require(shapes["num_kv_tiles"] <= 32 * shapes["num_words"],
                 "mask must have a bit for every KV tile");
}

void check_visits(const ScoreTilesArgs& args, ShapeContract& shapes) {
  if (!args.visits.present()) return;
  check_mask(args.visits, args.rows, shapes);
  shapes.require(args.probes.kind == TileProbeKind::kRows, "visits need probes of kind kRows");
  const int64_t num_list_heads = shapes["num_list_heads"];
  shapes.require(num_list_heads == 1 || num_list_heads == args.kv.shape.num_kv_heads,
                 "num_list_heads of visits must be 1 or num_kv_heads");
}

// The arguments of select_tiles that stand for records.
void check_masses(const TileMasses& masses, ShapeContract& shapes) {
  shapes.expect("masses.masses", masses.masses, DType::kI32,
                {"num_list_heads", "num_entries", "num_kv_tiles"});
  shapes.expect("masses.column_mass", masses.column_mass, DType::kI32,
                {"num_list_heads", "num_entries"});
}

}  // namespace

void score_tiles(Stream& stream, const ScoreTilesArgs& args) {
  ShapeContract shapes("score_tiles");
  shapes.expect("q", args.q, DType::kBF16, {"num_rows", "num_q_heads", "head_dim"});
  check_batch_of_one(args.batch, shapes);
  check_rows(args.rows, shapes);
  check_probes(args.probes, shapes);
  check_key_blocks(args, shapes);
  check_key_run_tables(args, shapes);
  shapes.bind("num_probes", int64_t{args.rows.num_q_tiles()} * probes_per_tile(args.probes));
  shapes.bind("probe_width", probe_width(args.probes, shapes["head_dim"]));
  shapes.expect("vectors", args.vectors, DType::kBF16,
                {"num_q_heads", "num_probes", "probe_width"});
  shapes.expect("records", args.records, DType::kF32,
                {"num_q_heads", "num_probes", "num_kv_tiles"});
  check_visits(args, shapes);
  ops_of(stream.device()).score_tiles(stream, args);
}

void tile_masses(Stream& stream, const TileMassesArgs& args) {
  ShapeContract shapes("tile_masses");
  check_batch_of_one(args.batch, shapes);
  check_rows(args.rows, shapes);
  shapes.require(args.probes_per_tile > 0, "probes_per_tile must be positive");
  shapes.bind("num_entries", args.rows.num_q_tiles());
  shapes.bind("num_probes", shapes["num_entries"] * args.probes_per_tile);
  shapes.expect("records", args.records, DType::kF32,
                {"num_q_heads", "num_probes", "num_kv_tiles"});
  shapes.expect("out.lse", args.out.lse, DType::kF32, {"num_q_heads", "num_probes"});
  check_masses(args.out, shapes);
  shapes.require(shapes["num_q_heads"] % shapes["num_list_heads"] == 0,
                 "num_q_heads must be a multiple of num_list_heads");
  ops_of(stream.device()).tile_masses(stream, args);
}

void select_tiles(Stream& stream, const SelectTilesArgs& args) {
  ShapeContract shapes("select_tiles");
  check_batch_of_one(args.batch, shapes);
  check_rows(args.rows, shapes);
  shapes.bind("num_entries", args.rows.num_q_tiles());
  if (args.masses.present()) {
    check_masses(args.masses, shapes);
  } else {
    shapes.require(args.probes_per_tile > 0, "probes_per_tile must be positive");
    shapes.bind("num_probes", shapes["num_entries"] * args.probes_per_tile);
    shapes.expect("records", args.records, DType::kF32,
                  {"num_q_heads", "num_probes", "num_kv_tiles"});
  }
  check_mask(args.mask, args.rows, shapes);
  shapes.require(args.masses.present() || shapes["num_q_heads"] % shapes["num_list_heads"] == 0,
                 "num_q_heads must be a multiple of num_list_heads");
  if (args.patterns.present()) {
    shapes.require(!args.masses.present(), "patterns need records in place of masses");
    shapes.require(args.segment_tokens > 0 && args.segment_tokens % kMaskTileTokens == 0,
                   "segment_tokens must be a multiple of kMaskTileTokens");
    shapes.bind("num_segments", (args.rows.count + args.segment_tokens - 1) / args.segment_tokens);
    shapes.expect("patterns", args.patterns, DType::kI32, {"num_q_heads", "num_segments"});
  }
  shapes.bind("3", 3);
  shapes.expect_or_absent("counts", args.counts, DType::kI64, {"3"});
  shapes.require(args.rule.share <= kMassOne, "rule.share must be at most kMassOne");
  ops_of(stream.device()).select_tiles(stream, args);
}

void add_tiles(Stream& stream, const AddTilesArgs& args) {
  ShapeContract shapes("add_tiles");
  check_batch_of_one(args.batch, shapes);
  check_rows(args.rows, shapes);
  shapes.bind("3", 3);
  shapes.expect("lists", args.lists, DType::kI32, {"num_list_heads", "3"});
  shapes.expect("mask.bits", args.mask.bits, DType::kI32,
                {"1", "num_list_heads", "num_q_tiles", "num_words"});
  shapes.require(
      args.rows.first / kMaskTileTokens + args.rows.num_q_tiles() <= shapes["num_q_tiles"],
      "mask must have an entry for every query tile of rows");
  if (args.other.present()) {
    shapes.expect("other.bits", args.other.bits, DType::kI32,
                  {"1", "num_list_heads", "num_q_tiles", "num_words"});
    shapes.require(args.other.first_q_tile == args.mask.first_q_tile,
                   "other must begin where mask begins");
  }
  shapes.expect("counts", args.counts, DType::kI64, {"3"});
  ops_of(stream.device()).add_tiles(stream, args);
}

}  // namespace sluice
