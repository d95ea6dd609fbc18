// Memory for the largest call, and the calls of tile_columns.h and tile_lines.h.
#include "lab/recall/recall_columns.h"

#include <algorithm>

#include "core/error.h"

namespace sluice::lab {
namespace {

int32_t first_pos_of(const ScoreTilesArgs& rows) { return *rows.batch.first_pos.data<int32_t>(); }

// KV tiles up to the end of the rows.
int64_t kv_tiles_of(const ScoreTilesArgs& rows) {
  return mask_tiles_of(int64_t{first_pos_of(rows)} + rows.rows.count);
}

}  // namespace

TensorView part_of(const TensorView& room, std::initializer_list<int64_t> dims) {
  const TensorView part(room.bytes(), room.dtype(), dims);
  SLUICE_CHECK(part.num_elements() <= room.num_elements(), "{} of {}", part.to_string(),
               room.to_string());
  return part;
}

RecallColumnOps::RecallColumnOps(Device& device, int64_t num_tokens, int32_t num_q_heads,
                                 const KvBlockShape& block)
    : num_kv_heads_(block.num_kv_heads), device_(device) {
  const int64_t heads = block.num_kv_heads;
  const int64_t tiles = mask_tiles_of(num_tokens);
  lse_ = tensor(DType::kF32, {num_q_heads, kMaskTileTokens});
  masses_ = tensor(DType::kI32, {heads, tiles, tiles});
  column_mass_ = tensor(DType::kI32, {heads, tiles});
  scores_ = tensor(DType::kI32, {heads, 1, tiles * kMaskTileTokens});
  diagonals_ = tensor(DType::kI64, {heads, 1, tiles});
  counts_ = tensor(DType::kI64, {3});
  max_count_ = tensor(DType::kI32, {heads});
  columns_ = {.positions = tensor(DType::kI32, {heads, 1, tiles * kMaskTileTokens}),
              .count = tensor(DType::kI32, {heads, 1}),
              .kv = tensor(DType::kBF16, {1, heads, 2, tiles * kMaskTileTokens, block.head_dim})};
}

// Pinned memory: host and ops both reach it.
TensorView RecallColumnOps::tensor(DType dtype, std::initializer_list<int64_t> dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  buffers_.push_back(
      device_.allocate(static_cast<size_t>(count) * dtype_bytes(dtype), MemoryKind::kPinned));
  return TensorView(buffers_.back().data(), dtype, dims);
}

// Room was made for the longest text; ops require tensors of exactly their sizes.
TensorView RecallColumnOps::scores_of(const ScoreTilesArgs& rows) const {
  return part_of(scores_, {num_kv_heads_, 1, kv_tiles_of(rows) * kMaskTileTokens});
}

TensorView RecallColumnOps::diagonals_of(const ScoreTilesArgs& rows) const {
  return part_of(diagonals_, {num_kv_heads_, 1, kv_tiles_of(rows)});
}

TileMasses RecallColumnOps::masses_of(const ScoreTilesArgs& rows) const {
  const int64_t num_q_tiles = rows.rows.num_q_tiles();
  const int64_t num_probes = num_q_tiles * rows.probes.rows_per_tile;
  return {.lse = part_of(lse_, {lse_.dim(0), num_probes}),
          .masses = part_of(masses_, {num_kv_heads_, num_q_tiles, kv_tiles_of(rows)}),
          .column_mass = part_of(column_mass_, {num_kv_heads_, num_q_tiles})};
}

// Also the log-sum-exp of each probe, which both kinds of columns are relative to.
void RecallColumnOps::write_masses(Stream& stream, const ScoreTilesArgs& rows) {
  tile_masses(stream, {.records = rows.records,
                       .probes_per_tile = rows.probes.rows_per_tile,
                       .batch = rows.batch,
                       .rows = rows.rows,
                       .first_q_tile = first_pos_of(rows) / kMaskTileTokens,
                       .out = masses_of(rows)});
}

void RecallColumnOps::score_rows(Stream& stream, const ScoreTilesArgs& rows,
                                 int32_t segment_tokens) {
  segment_tokens_ = segment_tokens;
  write_masses(stream, rows);
  score_columns(stream, {.vectors = rows.vectors,
                         .lse = masses_of(rows).lse,
                         .rows_per_tile = rows.probes.rows_per_tile,
                         .batch = rows.batch,
                         .rows = rows.rows,
                         .scale = rows.scale,
                         .kv = rows.kv,
                         .kv_begin = rows.kv_begin,
                         .kv_end = rows.kv_end,
                         .block_table = rows.block_table,
                         .segment_tokens = segment_tokens,
                         .scores = scores_of(rows)});
}

// Two walks over the keys, as in the policy: records of the line rows, then sums of probabilities.
void RecallColumnOps::score_verticals(Stream& stream, const ScoreTilesArgs& rows,
                                      int32_t segment_tokens) {
  segment_tokens_ = segment_tokens;
  const LineRows lines{.segment_tokens = segment_tokens};
  const int64_t heads = lse_.dim(0);
  const TensorView vectors = part_of(rows.vectors, {heads, lines.count, rows.q.dim(2)});
  const TensorView records = part_of(rows.records, {heads, lines.count, kv_tiles_of(rows)});
  score_line_rows(stream, {.q = rows.q,
                           .batch = rows.batch,
                           .rows = rows.rows,
                           .scale = rows.scale,
                           .kv = rows.kv,
                           .kv_begin = rows.kv_begin,
                           .kv_end = rows.kv_end,
                           .block_table = rows.block_table,
                           .lines = lines,
                           .vectors = vectors,
                           .records = records});
  score_lines(stream, {.vectors = vectors,
                       .records = records,
                       .lse = part_of(lse_, {heads, lines.count}),
                       .batch = rows.batch,
                       .rows = rows.rows,
                       .scale = rows.scale,
                       .kv = rows.kv,
                       .kv_begin = rows.kv_begin,
                       .kv_end = rows.kv_end,
                       .block_table = rows.block_table,
                       .lines = lines,
                       .verticals = scores_of(rows),
                       .diagonals = diagonals_of(rows)});
}

// A segment of the engine's pass is the whole call here, so there is one list for each KV head.
TileColumns RecallColumnOps::take(Stream& stream, const ScoreTilesArgs& rows,
                                  const ColumnRule& rule, int32_t column_tiles) {
  stream.synchronize();  // max_count_ is written by the host
  std::fill_n(max_count_.data<int32_t>(), num_kv_heads_, column_tiles * kMaskTileTokens);
  TileColumns columns = columns_;
  columns.segment_tokens = segment_tokens_;
  columns.first_segment = first_pos_of(rows) / segment_tokens_;
  select_columns(stream, {.scores = scores_of(rows),
                          .max_count = max_count_,
                          .batch = rows.batch,
                          .first_segment = columns.first_segment,
                          .rule = rule,
                          .columns = columns});
  gather_columns(stream, {.columns = columns,
                          .first_segment = columns.first_segment,
                          .num_segments = 1,
                          .kv = rows.kv,
                          .kv_begin = rows.kv_begin,
                          .kv_end = rows.kv_end,
                          .block_table = rows.block_table});
  return columns;
}

TileMasses RecallColumnOps::masses_beside(Stream& stream, const ScoreTilesArgs& rows,
                                          const TileColumns& columns) {
  write_masses(stream, rows);  // an earlier call took other columns off
  const TileMasses masses = masses_of(rows);
  subtract_columns(stream, {.vectors = rows.vectors,
                            .rows_per_tile = rows.probes.rows_per_tile,
                            .batch = rows.batch,
                            .rows = rows.rows,
                            .scale = rows.scale,
                            .columns = columns,
                            .masses = masses});
  return masses;
}

// The rule's number of tiles is one of diagonals here, 0 and 1 beside them.
void RecallColumnOps::select_diagonals_into(Stream& stream, const TileMask& mask,
                                            const ScoreTilesArgs& rows, const TileRule& rule,
                                            int64_t prompt_end) {
  stream.synchronize();  // max_count_ is written by the host
  std::fill_n(max_count_.data<int32_t>(), num_kv_heads_, rule.top_tiles + 2);
  TileRule forced = rule;
  forced.top_tiles = 0;  // of single query tiles
  select_diagonals(stream, {.diagonals = diagonals_of(rows),
                            .max_count = max_count_,
                            .segment_tokens = segment_tokens_,
                            .batch = rows.batch,
                            .rows = rows.rows,
                            .prompt_end = prompt_end,
                            .rule = forced,
                            .mask = mask,
                            .counts = counts_});
}

}  // namespace sluice::lab
