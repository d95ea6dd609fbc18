// The columns of an attention call on the CPU: copies those that an item keeps side by side.
//
// Used by attention/attention.cc. All rows of an item belong to one query tile, so that a column
// whose tile is set there is left out for all of them; the others are walked like tokens of their
// own, and each row sees a prefix of them. The copy costs a small share of the work on them.
// Thread rule: pure functions over the caller's scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/cpu/attention/kernel.h"

namespace sluice::cpu {

// TileColumns as plain pointers; max_columns is 0 without columns.
struct ColumnsCall {
  const int32_t* positions = nullptr;  // [num_list_heads][num_segments][max_columns]
  const int32_t* count = nullptr;      // [num_list_heads][num_segments]
  const uint16_t* kv = nullptr;        // [num_segments][num_kv_heads][2][max_columns][head_dim]
  int32_t num_list_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t num_segments = 0;
  int32_t max_columns = 0;
  int32_t segment_tokens = 0;
  int32_t first_segment = 0;
};

ColumnsCall make_columns_call(const TileColumns& columns);

// Bytes of `scratch` that columns_of needs, a multiple of 64.
size_t column_scratch_bytes(const ColumnsCall& call, int32_t head_dim);

// Positions [begin, end).
struct ColumnRange {
  int32_t begin = 0;
  int32_t end = std::numeric_limits<int32_t>::max();
};

// The item that attends those columns of the rows of `item` that lie in `range`, in `scratch`;
// kv_end is 0 if there are none. REQUIRES: item.tile_bits is that of the rows' query tile; 64-byte
// aligned scratch.
AttentionItem columns_of(const ColumnsCall& call, const AttentionItem& item, int32_t kv_head,
                         std::byte* scratch, const ColumnRange& range = {});

}  // namespace sluice::cpu
