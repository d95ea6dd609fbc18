// Which columns an item keeps, and the copy of their keys and values. Thread rule: pure functions.
#include "ops/cpu/attention/columns.h"

#include <algorithm>
#include <span>

#include "core/error.h"

namespace sluice::cpu {
namespace {

// The places of an item's columns in its scratch. One block table entry: all lie in "block" 0.
struct ColumnScratch {
  int32_t* block_table;  // [16]: a cache line
  int32_t* row_limits;   // [kMaskTileTokens]
  uint16_t* kv;          // [2][max_columns][head_dim]
};

ColumnScratch carve(std::byte* scratch) {
  auto* numbers = reinterpret_cast<int32_t*>(scratch);
  return {.block_table = numbers,
          .row_limits = numbers + 16,
          .kv = reinterpret_cast<uint16_t*>(numbers + 16 + kMaskTileTokens)};
}

bool is_set(const uint32_t* tile_bits, int32_t position) {
  const int32_t tile = position / kMaskTileTokens;
  return (tile_bits[tile / 32] >> (tile % 32) & 1) != 0;
}

// One past the last position that row `row` of the item sees.
int32_t limit_of(const AttentionItem& item, int32_t row) {
  return std::min(item.first_pos + row + 1, item.kv_end);
}

// The columns of one list, and the keys and values of one KV head at them.
struct ColumnList {
  std::span<const int32_t> positions;
  const uint16_t* keys;  // [max_columns][head_dim]
  const uint16_t* values;
  int64_t head_elements;  // of keys, and of values
};

ColumnList list_of(const ColumnsCall& call, const AttentionItem& item, int32_t kv_head) {
  const int32_t segment = item.first_pos / call.segment_tokens - call.first_segment;
  SLUICE_CHECK(segment >= 0 && segment < call.num_segments,
               "attention: rows from {} on are in segment {} of {} columns from segment {} on",
               item.first_pos, segment, call.num_segments, call.first_segment);
  const int32_t list_head = call.num_list_heads == 1 ? 0 : kv_head;
  const int64_t list = static_cast<int64_t>(list_head) * call.num_segments + segment;
  const int64_t head_elements = static_cast<int64_t>(call.max_columns) * item.head_dim;
  const uint16_t* keys =
      call.kv + (static_cast<int64_t>(segment) * call.num_kv_heads + kv_head) * 2 * head_elements;
  return {.positions = {call.positions + list * call.max_columns,
                        static_cast<size_t>(call.count[list])},
          .keys = keys,
          .values = keys + head_elements,
          .head_elements = head_elements};
}

// Copies the columns in `range` that some row of the item sees and no tile covers. Columns and the
// limits of rows both ascend, so that a row sees those that were kept before its limit. Returns how
// many.
int32_t keep_columns(const AttentionItem& item, const ColumnList& list, const ColumnRange& range,
                     const ColumnScratch& s) {
  int32_t num_kept = 0;
  int32_t row = 0;
  for (size_t i = 0; i < list.positions.size(); ++i) {
    const int32_t position = list.positions[i];
    if (position < range.begin) continue;
    if (position >= range.end) break;
    while (row < item.num_rows && limit_of(item, row) <= position) s.row_limits[row++] = num_kept;
    if (row == item.num_rows) break;
    if (is_set(item.tile_bits, position)) continue;
    const auto from = static_cast<int64_t>(i) * item.head_dim;
    uint16_t* to = s.kv + static_cast<int64_t>(num_kept++) * item.head_dim;
    std::copy_n(list.keys + from, item.head_dim, to);
    std::copy_n(list.values + from, item.head_dim, to + list.head_elements);
  }
  std::fill(s.row_limits + row, s.row_limits + item.num_rows, num_kept);
  return num_kept;
}

}  // namespace

ColumnsCall make_columns_call(const TileColumns& columns) {
  return {.positions = columns.positions.data<int32_t>(),
          .count = columns.count.data<int32_t>(),
          .kv = reinterpret_cast<const uint16_t*>(columns.kv.bytes()),
          .num_list_heads = static_cast<int32_t>(columns.positions.dim(0)),
          .num_kv_heads = static_cast<int32_t>(columns.kv.dim(1)),
          .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
          .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
          .segment_tokens = columns.segment_tokens,
          .first_segment = columns.first_segment};
}

size_t column_scratch_bytes(const ColumnsCall& call, int32_t head_dim) {
  if (call.max_columns == 0) return 0;
  const size_t kv_bytes = size_t{2} * static_cast<size_t>(call.max_columns * head_dim) * 2;
  return (16 + kMaskTileTokens) * sizeof(int32_t) + (kv_bytes + 63) / 64 * 64;
}

AttentionItem columns_of(const ColumnsCall& call, const AttentionItem& item, int32_t kv_head,
                         std::byte* scratch, const ColumnRange& range) {
  AttentionItem columns = item;
  columns.kv_begin = columns.kv_end = 0;
  if (call.max_columns == 0) return columns;
  const ColumnScratch s = carve(scratch);
  s.block_table[0] = 0;
  columns.kv_end = keep_columns(item, list_of(call, item, kv_head), range, s);
  columns.tile_bits = nullptr;
  columns.blocks = reinterpret_cast<const std::byte*>(s.kv);
  columns.block_stride_bytes = 0;
  columns.block_tokens = call.max_columns;
  columns.token_bytes = item.head_dim * 2;
  columns.element = KvElement::kBFloat16;
  columns.keys_in_bf16 = false;
  columns.room = nullptr;  // copies are bf16
  columns.block_table = s.block_table;
  columns.half_bytes = static_cast<size_t>(call.max_columns * item.head_dim) * sizeof(uint16_t);
  columns.row_limits = s.row_limits;
  return columns;
}

}  // namespace sluice::cpu
