// Parts of the shape contracts that the ops of tile selection share.
//
// Used by ops/tile_*.cc. Thread rule: pure functions.
#pragma once

#include "ops/kv_blocks.h"
#include "ops/shape_contract.h"
#include "ops/tiles/tile_lines.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

inline void check_batch_of_one(const AttentionBatch& batch, ShapeContract& shapes) {
  shapes.bind("1", 1);
  shapes.bind("2", 2);
  shapes.expect("batch.first_pos", batch.first_pos, DType::kI32, {"1"});
  shapes.expect("batch.row_begin", batch.row_begin, DType::kI32, {"2"});
}

inline void check_rows(const TileRows& rows, ShapeContract& shapes) {
  shapes.require(rows.first >= 0 && rows.first % kMaskTileTokens == 0 && rows.count > 0,
                 "rows.first must be a multiple of kMaskTileTokens, rows.count positive");
}

// Binds num_segments and num_probes, those of `rows`.
inline void check_lines(const LineRows& lines, const TileRows& rows, ShapeContract& shapes) {
  check_rows(rows, shapes);
  shapes.require(lines.segment_tokens > 0 && lines.segment_tokens % kMaskTileTokens == 0,
                 "lines.segment_tokens must be a multiple of kMaskTileTokens");
  shapes.require(lines.count > 0 && lines.count <= kMaskTileTokens,
                 "lines.count must be 1 to kMaskTileTokens");
  shapes.bind("num_segments", (rows.count + lines.segment_tokens - 1) / lines.segment_tokens);
  shapes.bind("num_probes", shapes["num_segments"] * lines.count);
}

// A run of keys for num_q_heads query heads of head_dim.
inline void check_key_run_blocks(const KvBlocksView& kv, ShapeContract& shapes) {
  shapes.require(kv.base != nullptr || kv.num_blocks == 0, "kv must be present");
  shapes.require(kv.shape.head_dim == shapes["head_dim"],
                 "kv.shape.head_dim must be head_dim of q");
  shapes.require(
      kMaskTileTokens % kv.shape.block_tokens == 0 || kv.shape.block_tokens % kMaskTileTokens == 0,
      "block_tokens must divide kMaskTileTokens or be a multiple of it");
}

// The tables of a run of one sequence. REQUIRES: check_batch_of_one came before.
template <typename Args>
void check_key_run_tables(const Args& args, ShapeContract& shapes) {
  shapes.expect("kv_begin", args.kv_begin, DType::kI32, {"1"});
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"1"});
  shapes.expect("block_table", args.block_table, DType::kI32, {"1", "max_blocks"});
}

}  // namespace sluice
