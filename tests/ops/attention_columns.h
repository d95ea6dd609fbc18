// Columns of a test's choice: positions, and copies of keys and values at them.
//
// Used by attention_problem.h. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "op_test_util.h"
#include "ops/attention/attention.h"

namespace sluice::testing {

struct ColumnShape {
  int32_t num_lists = 1;  // 1, or num_kv_heads
  int32_t first_segment = 0;
  int32_t num_segments = 1;
  int32_t segment_tokens = 0;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 0;
  const BFloat16* k = nullptr;  // [token][num_kv_heads][head_dim]
  const BFloat16* v = nullptr;
};

// Rows of `from` at `positions`, and the zeros after them that the contract asks for.
inline void copy_columns(const ColumnShape& shape, const BFloat16* from, int32_t head,
                         const std::vector<int32_t>& positions, BFloat16* to) {
  const int64_t num_rows =
      (std::ssize(positions) + kMaskTileTokens - 1) / kMaskTileTokens * kMaskTileTokens;
  std::fill_n(to, num_rows * shape.head_dim, BFloat16(0.0f));
  for (const int32_t position : positions) {
    const int64_t row = int64_t{position} * shape.num_kv_heads + head;
    std::copy_n(from + row * shape.head_dim, shape.head_dim, to);
    to += shape.head_dim;
  }
}

// positions_of(list, segment) gives the columns. What lies behind the zeros is NaN.
inline TileColumns make_columns(
    Machine& machine, const std::function<std::vector<int32_t>(int32_t, int32_t)>& positions_of,
    const ColumnShape& shape) {
  std::vector<std::vector<int32_t>> lists;
  size_t width = 0;
  for (int32_t list = 0; list < shape.num_lists * shape.num_segments; ++list) {
    lists.push_back(
        positions_of(list / shape.num_segments, shape.first_segment + list % shape.num_segments));
    width = std::max(width, (lists.back().size() / kMaskTileTokens + 2) * kMaskTileTokens);
  }
  const auto max_columns = static_cast<int64_t>(width);
  TileColumns columns{
      .positions = machine.tensor(DType::kI32, {shape.num_lists, shape.num_segments, max_columns}),
      .count = machine.tensor(DType::kI32, {shape.num_lists, shape.num_segments}),
      .kv = machine.tensor(
          DType::kBF16, {shape.num_segments, shape.num_kv_heads, 2, max_columns, shape.head_dim}),
      .segment_tokens = shape.segment_tokens,
      .first_segment = shape.first_segment};
  for (size_t list = 0; list < lists.size(); ++list) {
    std::copy(lists[list].begin(), lists[list].end(),
              columns.positions.data<int32_t>() + list * width);
    columns.count.data<int32_t>()[list] = static_cast<int32_t>(lists[list].size());
  }
  BFloat16* to = columns.kv.data<BFloat16>();
  for (int32_t i = 0; i < shape.num_segments * shape.num_kv_heads; ++i) {
    const int32_t head = i % shape.num_kv_heads;
    const int32_t list =
        (shape.num_lists == 1 ? 0 : head) * shape.num_segments + i / shape.num_kv_heads;
    for (const BFloat16* from : {shape.k, shape.v}) {
      copy_columns(shape, from, head, lists[static_cast<size_t>(list)], to);
      to += max_columns * shape.head_dim;
    }
  }
  return columns;
}

}  // namespace sluice::testing
