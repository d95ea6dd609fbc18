// How many rows are audited, the shape contract, and what a tally says.
#include "ops/tiles/audit_mass.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

void check_rows(const AuditMassArgs& args, ShapeContract& shapes) {
  shapes.bind("1", 1);
  shapes.bind("2", 2);
  shapes.expect("batch.first_pos", args.batch.first_pos, DType::kI32, {"1"});
  shapes.expect("batch.row_begin", args.batch.row_begin, DType::kI32, {"2"});
  shapes.require(
      args.rows.first >= 0 && args.rows.first % kMaskTileTokens == 0 && args.rows.count > 0,
      "rows.first must be a multiple of kMaskTileTokens, rows.count positive");
}

void check_keys(const AuditMassArgs& args, ShapeContract& shapes) {
  const KvBlockShape& kv = args.kv.shape;
  shapes.require(args.kv.base != nullptr || args.kv.num_blocks == 0, "kv must be present");
  shapes.require(kv.head_dim == shapes["head_dim"] && kv.head_dim % 16 == 0,
                 "kv.shape.head_dim must be head_dim of q, a multiple of 16");
  shapes.require(kv.num_kv_heads > 0 && shapes["num_q_heads"] % kv.num_kv_heads == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  shapes.require(kMaskTileTokens % kv.block_tokens == 0 || kv.block_tokens % kMaskTileTokens == 0,
                 "block_tokens must divide kMaskTileTokens or be a multiple of it");
  shapes.expect("kv_begin", args.kv_begin, DType::kI32, {"1"});
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"1"});
  shapes.expect("block_table", args.block_table, DType::kI32, {"1", "max_blocks"});
}

void check_selection(const AuditMassArgs& args, ShapeContract& shapes) {
  shapes.expect("mask.bits", args.mask.bits, DType::kI32,
                {"1", "num_list_heads", "num_q_tiles", "num_words"});
  const int64_t heads = shapes["num_list_heads"];
  shapes.require(heads == 1 || heads == args.kv.shape.num_kv_heads,
                 "mask must have one entry for all heads or per KV head");
  shapes.require(
      args.rows.first / kMaskTileTokens + args.rows.num_q_tiles() <= shapes["num_q_tiles"],
      "mask must have an entry for every query tile of rows");
  if (!args.columns.present()) return;
  shapes.expect("columns.positions", args.columns.positions, DType::kI32,
                {"num_list_heads", "num_segments", "max_columns"});
  shapes.expect("columns.count", args.columns.count, DType::kI32,
                {"num_list_heads", "num_segments"});
  shapes.require(
      args.columns.segment_tokens > 0 && args.columns.segment_tokens % kMaskTileTokens == 0,
      "columns.segment_tokens must be a multiple of kMaskTileTokens");
}

double share_of(int64_t mass) { return static_cast<double>(mass) / kMassOne; }

}  // namespace

int32_t num_audit_groups(int32_t first_q_tile, int32_t num_q_tiles) {
  if (num_q_tiles <= 0) return 0;
  return (first_q_tile + num_q_tiles - 1) / kAuditGroupTiles - first_q_tile / kAuditGroupTiles + 1;
}

void audit_mass(Stream& stream, const AuditMassArgs& args) {
  ShapeContract shapes("audit_mass");
  shapes.expect("q", args.q, DType::kBF16, {"num_rows", "num_q_heads", "head_dim"});
  check_rows(args, shapes);
  check_keys(args, shapes);
  check_selection(args, shapes);
  shapes.bind("4", 4);
  shapes.bind("num_groups",
              num_audit_groups(args.mask.first_q_tile + args.rows.first / kMaskTileTokens,
                               args.rows.num_q_tiles()));
  shapes.bind("kAuditParts", kAuditParts);
  shapes.expect("state", args.state, DType::kF32,
                {"num_groups", "kAuditParts", "num_q_heads", "4"});
  shapes.bind("num_counts", kAuditCounts + shapes["num_q_heads"]);
  shapes.expect("tally", args.tally, DType::kI64, {"num_counts"});
  ops_of(stream.device()).audit_mass(stream, args);
}

AuditedMass summarize_mass(std::span<const int64_t> tally) {
  SLUICE_CHECK(tally.size() >= kAuditCounts, "{} counts", tally.size());
  AuditedMass audited{.num_rows = tally[kAuditRows],
                      .num_skipped = tally[kAuditSkipped],
                      .mean = 0,
                      .standard_error = 0,
                      .of_heads = std::vector<double>(tally.size() - kAuditCounts)};
  const auto num_rows = static_cast<double>(audited.num_rows);
  if (audited.num_rows == 0) return audited;
  audited.mean = share_of(tally[kAuditMass]) / num_rows;
  for (size_t head = 0; head < audited.of_heads.size(); ++head) {
    audited.of_heads[head] = share_of(tally[kAuditCounts + head]) / num_rows;
  }
  if (audited.num_rows < 2) return audited;
  const double variance = share_of(tally[kAuditSquares]) / num_rows - audited.mean * audited.mean;
  audited.standard_error = std::sqrt(std::max(0.0, variance) / (num_rows - 1));
  return audited;
}

}  // namespace sluice
