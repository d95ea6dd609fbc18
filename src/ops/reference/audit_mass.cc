// The softmax of a row over all tokens, and the sum of it over those that are attended.
#include "ops/reference/audit_mass.h"

#include <algorithm>
#include <limits>

#include "ops/reference/softmax_mass.h"
#include "ops/reference/tile_selection.h"

namespace sluice::reference {
namespace {

bool is_tile_set(const TileMask& mask, int64_t list_head, int32_t q_tile, int32_t kv_tile) {
  const int64_t entry = list_head * mask.bits.dim(2) + q_tile - mask.first_q_tile;
  const int32_t word = mask.bits.data<int32_t>()[entry * mask.bits.dim(3) + kv_tile / 32];
  return (static_cast<uint32_t>(word) >> (kv_tile % 32) & 1u) != 0;
}

bool is_column(const TileColumns& columns, int64_t list_head, int32_t row, int32_t token) {
  if (!columns.present()) return false;
  const int64_t list =
      list_head * columns.positions.dim(1) + row / columns.segment_tokens - columns.first_segment;
  const int32_t* begin = columns.positions.data<int32_t>() + list * columns.positions.dim(2);
  const int32_t* end = begin + columns.count.data<int32_t>()[list];
  return std::find(begin, end, token) != end;
}

double captured_by(const AuditMassArgs& args, int64_t q_head, int32_t row) {
  const std::vector<double> scores = row_scores({.q = args.q,
                                                 .batch = args.batch,
                                                 .scale = args.scale,
                                                 .kv = args.kv,
                                                 .kv_end = args.kv_end,
                                                 .block_table = args.block_table},
                                                q_head, row);
  std::vector<double> mass(scores.size());
  if (!add_token_mass(scores, mass)) return std::numeric_limits<double>::quiet_NaN();
  const int64_t kv_head = q_head / (args.q.dim(1) / args.kv.shape.num_kv_heads);
  const int64_t list_head = args.mask.bits.dim(1) == 1 ? 0 : kv_head;
  double sum = 0;
  for (int32_t token = 0; token <= row; ++token) {
    if (is_tile_set(args.mask, list_head, row / kMaskTileTokens, token / kMaskTileTokens) ||
        is_column(args.columns, list_head, row, token)) {
      sum += mass[static_cast<size_t>(token)];
    }
  }
  return sum;
}

}  // namespace

std::vector<AuditedRow> audit_mass(const AuditMassArgs& args) {
  const int32_t first_row = args.batch.first_pos.data<int32_t>()[0] + args.rows.first;
  const auto end_pos =
      args.batch.first_pos.data<int32_t>()[0] + static_cast<int32_t>(args.q.dim(0));
  const int32_t end = std::min(first_row + args.rows.count, end_pos);
  std::vector<AuditedRow> rows;
  for (int32_t row = first_row; row < end; ++row) {
    const int32_t q_tile = row / kMaskTileTokens;
    const bool is_whole = (q_tile + 1) * kMaskTileTokens <= end_pos;
    if (!is_whole || row != audit_row(q_tile / kAuditGroupTiles)) continue;
    AuditedRow audited{.position = row, .captured = {}};
    for (int64_t head = 0; head < args.q.dim(1); ++head) {
      audited.captured.push_back(captured_by(args, head, row));
    }
    rows.push_back(std::move(audited));
  }
  return rows;
}

}  // namespace sluice::reference
