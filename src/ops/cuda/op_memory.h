// What the CUDA ops keep in device memory: sizes alone, so that a build without them can plan for a
// GPU that is not here. Without CUDA types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/matmul/packed_weight.h"
#include "ops/op_needs.h"

namespace sluice::cuda {

// What matrix products of one stream keep: what NVIDIA recommends for Hopper.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;
// What attention of one stream keeps. Decode needs most: partial sums of all windows of a call. A
// call that needs more runs in several rounds (attention/decode/decode.h).
inline constexpr size_t kAttentionScratchBytes = size_t{64} << 20;

// Weights in codes that are multiplied by many rows become bf16 in parts of this size. For experts
// it is more, so that some tens of them are multiplied together.
inline constexpr size_t kConvertedBytes = size_t{64} << 20;
inline constexpr size_t kConvertedExpertBytes = size_t{256} << 20;
inline size_t converted_bytes(const OpNeeds& needs) {
  if (needs.has_coded_experts) return kConvertedExpertBytes;
  return needs.has_coded_weights ? kConvertedBytes : 0;
}

// KV in codes becomes bf16 here before prefill reads it: one KV head of the longest run, and the
// table of its blocks, which have at least 4 KiB. Never less than this, so that the heads of
// usual prompts are converted together. Where keys in codes are scored, those of all heads: a call
// adds up what heads of a list have.
inline constexpr size_t kLeastKvScratchBytes = size_t{64} << 20;
constexpr size_t kv_scratch_table_bytes(size_t block_bytes) { return block_bytes / 1024; }
constexpr size_t kv_scratch_block_bytes(size_t scratch_bytes) {
  return scratch_bytes / 1025 / 16 * 1024 * 16;
}
inline size_t kv_scratch_bytes(const OpNeeds& needs) {
  if (needs.kv.element == KvElement::kBFloat16) return 0;
  // Keys or values of a head; blocks have an even number of them.
  const bool converts_all = needs.scores_keys && !needs.kv.keys_in_bf16;
  const size_t num_lines =
      converts_all ? (static_cast<size_t>(needs.kv.num_kv_heads) + 1) / 2 * 2 : 2;
  const size_t line_bytes =
      static_cast<size_t>(needs.max_run_tokens) * static_cast<size_t>(needs.kv.head_dim) * 2;
  constexpr size_t kUnit = size_t{1} << 20;
  const size_t block_bytes =
      (std::max(num_lines * line_bytes, kLeastKvScratchBytes) + kUnit - 1) / kUnit * kUnit;
  return block_bytes + kv_scratch_table_bytes(block_bytes);
}

inline size_t stream_memory_bytes(const OpNeeds& needs) {
  return kMatmulWorkspaceBytes + kAttentionScratchBytes + converted_bytes(needs) +
         kv_scratch_bytes(needs);
}

// Where the scale of a number of a weight with scales lies: f32 at (row >> row_shift) * row_stride
// + column / 128 * group_stride, as cuBLASLt reads them. The blocks of 128 rows have a multiple
// of 4.
struct E4m3ScaleLayout {
  int32_t row_shift = 0;
  int64_t row_stride = 1;
  int64_t group_stride = 0;
  int64_t num_scales = 0;
};

inline E4m3ScaleLayout e4m3_scale_layout(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  const int64_t per_row = scales_per_row(format, num_cols);
  if (format == WeightFormat::kE4m3Blocks) {
    const int64_t stride = (per_row + 3) / 4 * 4;
    return {.row_shift = 7,
            .row_stride = stride,
            .group_stride = 1,
            .num_scales = (num_rows + kScaleGroup - 1) / kScaleGroup * stride};
  }
  return {.group_stride = format == WeightFormat::kE4m3Groups ? num_rows : 0,
          .num_scales = num_rows * per_row};
}

// Where what belongs to integers lies: rows of whole groups of 128 columns, then an f32 scale for
// each group of columns and row, [num_groups, group_stride], then its zero point, u8 likewise.
// Groups of a multiple of 128 columns, or of all, are kept as groups of 128, smaller ones as groups
// of 32: repeated values cost at most 2 % of the bytes, and kernels divide by nothing. Where
// columns have orders, these follow, i32 [num_orders][num_cols], and the order of each kOrderRows
// rows, i32.
//
// Of 128 columns with 4 bits, in 64 bytes, word w of 32 bits of the 16 bytes t has columns
// 32 w + 8 t to 32 w + 8 t + 7: even ones in its low half, odd ones in its high half, in ascending
// order. So a lane finds pairs of neighbours by one shift and one mask, and four lanes together 32
// columns, the smallest group. Of 64 columns with 8 bits, the 16 bytes t have columns 8 t to
// 8 t + 7, then those 32 on: the same columns for a lane.
struct IntegerLayout {
  int64_t row_bytes = 0;     // of codes, with padding
  int32_t group_cols = 0;    // 128 or 32
  int64_t num_groups = 0;    // of a row, with those of its padding
  int32_t group_stride = 0;  // a multiple of 4, since four zero points are read at once
  int32_t num_orders = 0;    // 0: columns are those of x
  int64_t scales_at = 0;     // bytes from the first code to the first scale
  int64_t zeros_at = 0;      // likewise the others
  int64_t num_bytes = 0;     // of all
  int64_t orders_at = 0;
  int64_t order_of_rows_at = 0;
  bool is_4 = false;  // else of 8 bits
};

inline constexpr int64_t kIntegerColumns = 128;

inline IntegerLayout integer_layout(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  const int64_t of_scale = format.group_cols == 0 ? num_cols : format.group_cols;
  const bool is_whole = of_scale % kIntegerColumns == 0 || of_scale >= num_cols;
  const int64_t num_pieces = (num_cols + kIntegerColumns - 1) / kIntegerColumns;
  IntegerLayout layout;
  layout.is_4 = format.numbers == WeightNumbers::kUint4;
  layout.row_bytes = num_pieces * kIntegerColumns / (layout.is_4 ? 2 : 1);
  layout.group_cols = is_whole ? 128 : 32;
  layout.num_groups = num_pieces * kIntegerColumns / layout.group_cols;
  layout.group_stride = static_cast<int32_t>((num_rows + 3) / 4 * 4);
  layout.num_orders = format.num_orders;
  layout.scales_at = (num_rows * layout.row_bytes + 15) / 16 * 16;
  layout.zeros_at = layout.scales_at + layout.num_groups * layout.group_stride * 4;
  layout.orders_at = layout.zeros_at + layout.num_groups * layout.group_stride;
  layout.num_bytes = layout.orders_at;
  if (format.num_orders > 0) {
    layout.orders_at = (layout.orders_at + 15) / 16 * 16;
    const int64_t num_panels = (num_rows + kOrderRows - 1) / kOrderRows;
    layout.order_of_rows_at =
        layout.orders_at + format.num_orders * static_cast<int64_t>(order_bytes(num_cols));
    layout.num_bytes = layout.order_of_rows_at + num_panels * static_cast<int64_t>(sizeof(int32_t));
  }
  return layout;
}

// The words that hold the values of a row of GGUF's blocks for 128 columns: factors, four a word,
// minima likewise, then scales of f16, a word for each block's scale and min_scale; without minima
// two blocks share a word. Blocks of 256 columns have their scales twice.
struct GgufWords {
  int32_t minima_at = 0;
  int32_t scales_at = 0;
  int32_t count = 0;
};

// For the host, and for constants of the device's code.
constexpr GgufWords gguf_words(int32_t group_cols, int32_t block_cols, bool has_minima) {
  const int32_t num_blocks = block_cols < 128 ? 128 / block_cols : 1;
  GgufWords words;
  words.minima_at = 32 / group_cols;
  words.scales_at = words.minima_at * (has_minima ? 2 : 1);
  words.count = words.scales_at + (has_minima ? num_blocks : (num_blocks + 1) / 2);
  return words;
}

// Where what belongs to GGUF's blocks lies: rows of whole groups of 128 columns, then their words,
// [num_cols / 128, words.count, num_rows]. Factors and codes of 8 bits are stored with their sign
// bit turned over, as their distance to -128.
//
// Codes of 4 bits lie as those of IntegerLayout. Of 64 columns with 8 bits, word w of the 16 bytes
// t has columns 16 w + 4 t to 16 w + 4 t + 3: so four lanes have 16 columns, the smallest group, in
// a word each.
struct GgufLayout {
  int64_t row_bytes = 0;  // of codes
  int64_t values_at = 0;  // bytes from the first code to the first word
  int64_t num_bytes = 0;
  GgufWords words;
  int32_t group_cols = 0;  // as the format has them
  int32_t block_cols = 0;  // 32, or 128 for blocks of 256
  bool is_4 = false;
  bool has_minima = false;
};

inline GgufLayout gguf_layout(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  const int64_t num_pieces = (num_cols + 127) / 128;
  GgufLayout layout;
  layout.is_4 = format.numbers == WeightNumbers::kGguf4;
  layout.row_bytes = num_pieces * (layout.is_4 ? 64 : 128);
  layout.words = gguf_words(format.group_cols, format.block_cols, format.has_minima);
  layout.group_cols = format.group_cols;
  layout.block_cols = std::min(format.block_cols, 128);
  layout.has_minima = format.has_minima;
  layout.values_at = num_rows * layout.row_bytes;
  layout.num_bytes = layout.values_at + num_pieces * layout.words.count * num_rows * 4;
  return layout;
}

// Whether there are kernels for this format of GGUF's blocks: those of all types, and of matrices
// of several types side by side.
inline bool has_gguf_kernels(WeightFormat format) {
  if (format.block_cols != 32 && format.block_cols != 256) return false;
  if (format.numbers == WeightNumbers::kGguf4) return format.group_cols == 32 && format.has_minima;
  return format.numbers == WeightNumbers::kGguf8 &&
         (format.group_cols == 16 || format.group_cols == 32);
}

// A packed weight is the matrix itself, row by row, and then its scales. Errors: kUnsupported for
// another format.
inline size_t row_major_bytes(int64_t num_rows, int64_t num_cols, WeightFormat format) {
  constexpr size_t kAlignment = 256;
  if (has_gguf_kernels(format)) {
    const auto num_bytes = static_cast<size_t>(gguf_layout(format, num_rows, num_cols).num_bytes);
    return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (stores_integers(format)) {
    const auto num_bytes =
        static_cast<size_t>(integer_layout(format, num_rows, num_cols).num_bytes);
    return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (!stores_e4m3(format)) expect_weight_format("pack_weight", format, WeightFormat::kBFloat16);
  constexpr size_t kScaleAlignment = 16;
  size_t num_bytes = weight_bytes(WeightFormat::kBFloat16, num_rows, num_cols);
  if (stores_e4m3(format)) {
    const E4m3ScaleLayout scales = e4m3_scale_layout(format, num_rows, num_cols);
    num_bytes =
        num_bytes / 2 + kScaleAlignment + static_cast<size_t>(scales.num_scales) * sizeof(float);
  }
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace sluice::cuda
