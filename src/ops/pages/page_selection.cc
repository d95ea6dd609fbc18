// Shape contracts of the ops of page selection.
#include "ops/pages/page_selection.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

// Binds num_seqs, and num_seqs + 1.
void check_batch(const AttentionBatch& batch, ShapeContract& shapes) {
  shapes.expect("batch.first_pos", batch.first_pos, DType::kI32, {"num_seqs"});
  shapes.bind("num_seqs + 1", shapes["num_seqs"] + 1);
  shapes.expect("batch.row_begin", batch.row_begin, DType::kI32, {"num_seqs + 1"});
}

// Binds the dims of minmax; 256 channels is what the kernels have registers and scratch for.
void check_bounds(const KeyBounds& bounds, ShapeContract& shapes) {
  shapes.bind("2", 2);
  shapes.expect("bounds.minmax", bounds.minmax, DType::kBF16,
                {"num_blocks", "pages_per_block", "num_kv_heads", "2", "head_dim"});
  shapes.require(bounds.page_tokens > 0 && bounds.page_tokens % kAttentionTile == 0,
                 "bounds.page_tokens must be a multiple of kAttentionTile");
  shapes.require(shapes["head_dim"] % 16 == 0 && shapes["head_dim"] <= 256,
                 "head_dim must be a multiple of 16 and at most 256");
}

// Queries of other zones are as q, and a chunk is whole blocks.
void check_zones(const ScorePagesArgs& args, ShapeContract& shapes) {
  const QueryZones& zones = args.zones;
  if (!zones.present()) return;
  shapes.expect("zones.before", zones.before, DType::kBF16,
                {"num_seqs", "num_q_heads", "head_dim"});
  shapes.expect("zones.far", zones.far, DType::kBF16, {"num_seqs", "num_q_heads", "head_dim"});
  const int64_t block_tokens = shapes["pages_per_block"] * args.bounds.page_tokens;
  shapes.require(zones.chunk_tokens > 0 && zones.chunk_tokens % block_tokens == 0,
                 "zones.chunk_tokens must be a multiple of pages_per_block * bounds.page_tokens");
}

// Zero is valid everywhere: it turns the part of the rule off.
void check_rule(const PageRule& rule, ShapeContract& shapes) {
  shapes.require(rule.sink_pages >= 0 && rule.recent_tokens >= 0 && rule.top_pages >= 0 &&
                     rule.threshold_tokens >= 0,
                 "no number of the rule may be negative");
}

}  // namespace

void update_key_bounds(Stream& stream, const UpdateKeyBoundsArgs& args) {
  ShapeContract shapes("update_key_bounds");
  check_batch(args.batch, shapes);
  check_bounds(args.bounds, shapes);
  shapes.expect("kv_begin", args.kv_begin, DType::kI32, {"num_seqs"});
  shapes.expect("block_table", args.block_table, DType::kI32, {"num_seqs", "max_blocks"});
  shapes.expect("block_ids", args.block_ids, DType::kI32, {"num_seqs", "max_ids"});
  const KvBlockShape& kv = args.kv.shape;
  shapes.require(args.kv.base != nullptr || args.kv.num_blocks == 0, "kv must be present");
  shapes.require(kv.num_kv_heads == shapes["num_kv_heads"] && kv.head_dim == shapes["head_dim"],
                 "kv.shape must have the heads and channels of bounds.minmax");
  shapes.require(kv.block_tokens == shapes["pages_per_block"] * args.bounds.page_tokens,
                 "kv.shape.block_tokens must be pages_per_block * bounds.page_tokens");
  shapes.require(args.num_layers > 0 && shapes["num_blocks"] % args.num_layers == 0,
                 "num_layers must divide num_blocks");
  ops_of(stream.device()).update_key_bounds(stream, args);
}

void score_pages(Stream& stream, const ScorePagesArgs& args) {
  ShapeContract shapes("score_pages");
  check_batch(args.batch, shapes);
  shapes.expect("q", args.q, DType::kBF16, {"num_seqs", "num_q_heads", "head_dim"});
  check_bounds(args.bounds, shapes);
  shapes.require(shapes["num_q_heads"] % shapes["num_kv_heads"] == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  check_zones(args, shapes);
  shapes.expect("block_ids", args.block_ids, DType::kI32, {"num_seqs", "max_ids"});
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"num_seqs"});
  shapes.expect("scores", args.scores, DType::kF32, {"num_seqs", "num_kv_heads", "max_pages"});
  ops_of(stream.device()).score_pages(stream, args);
}

void select_pages(Stream& stream, const SelectPagesArgs& args) {
  ShapeContract shapes("select_pages");
  const PageList& pages = args.pages;
  check_batch(args.batch, shapes);
  check_rule(args.rule, shapes);
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"num_seqs"});
  shapes.expect("pages.page_ids", pages.page_ids, DType::kI32,
                {"num_seqs", "num_list_heads", "num_q_pages", "max_pages"});
  shapes.expect("pages.page_count", pages.page_count, DType::kI32,
                {"num_seqs", "num_list_heads", "num_q_pages"});
  shapes.require(pages.page_tokens > 0 && pages.page_tokens % kAttentionTile == 0,
                 "pages.page_tokens must be a multiple of kAttentionTile");
  shapes.require(pages.q_page_tokens >= 0 && pages.q_page_tokens % kAttentionTile == 0,
                 "pages.q_page_tokens must be a multiple of kAttentionTile");
  shapes.require(pages.q_page_tokens > 0 || shapes["num_q_pages"] == 1,
                 "num_q_pages must be 1 when q_page_tokens is 0");
  shapes.expect_or_absent("scores", args.scores, DType::kF32,
                          {"num_seqs", "num_kv_heads", "max_scores"});
  if (args.scores.present()) {
    const int64_t heads = shapes["num_list_heads"];
    shapes.require(heads == 1 || heads == shapes["num_kv_heads"],
                   "pages must have one list per KV head or one for all");
    shapes.require(pages.q_page_tokens == 0, "q_page_tokens must be 0 when there are scores");
  } else {
    shapes.require(args.rule.top_pages == 0, "top_pages must be 0 without scores");
  }
  shapes.expect_or_absent("reads.counts", args.reads.counts, DType::kI32,
                          {"num_blocks", "pages_per_block"});
  if (args.reads.counts.present()) {
    shapes.expect("reads.block_ids", args.reads.block_ids, DType::kI32, {"num_seqs", "max_ids"});
  }
  ops_of(stream.device()).select_pages(stream, args);
}

}  // namespace sluice
