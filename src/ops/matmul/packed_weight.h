// PackedWeight: a weight in device memory, in one of the formats that products read.
//
// model/weights makes them while loading; matmul, gated_product and embedding read them. Thread
// rule: plain values.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace sluice {

class Device;

// What the numbers of a weight are stored as.
enum class WeightNumbers : uint8_t { kBFloat16, kE4m3, kUint4, kUint8, kGguf4, kGguf8 };

// How a weight is stored. pack_weight converts a checkpoint's numbers to it.
//
// A number of e4m3 stands for its value times an f32 scale, an unsigned integer for its distance to
// a zero point times the scale. A scale, and a zero point of the same bits as the numbers, belongs
// to a row and a group of its columns. Whole matrices are stored with a scale for each row, too, so
// that matrices side by side in one weight keep their own, and so are blocks of 128 x 128 unless
// all these matrices begin at multiples of 128 rows: kE4m3Blocks, which a backend may store as
// kE4m3Groups. Scales are stored as they came, neither merged nor rounded.
//
// Columns of integers may lie in another order than those of x, so that the columns of a group are
// neighbours. Each of the matrices side by side has its own order then.
//
// A number of GGUF's blocks, a code q of 4 bits (kGguf4) or of 8 with a sign (kGguf8), stands for
// (scale * factor) * q - min_scale * minimum: factor and minimum, of 8 bits, belong to a row and a
// group of its columns, scale and min_scale, f16, to a block of them. CUDA rounds it to bf16 for
// more than 16 rows; on a CPU without AMX x becomes integers (ops/cpu/matmul/gguf_products.h).
struct WeightFormat {
  WeightNumbers numbers = WeightNumbers::kBFloat16;
  int32_t group_cols = 0;   // columns of a group, a multiple of 32 (GGUF: 16); 0: all of a row
  int32_t num_orders = 0;   // 0: columns are in the order of x
  int32_t group_rows = 1;   // rows that share scales
  int32_t block_cols = 0;   // of kGguf4 and kGguf8: columns of a block, a multiple of group_cols
  bool has_minima = false;  // the same: without them minima are 0

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of a comparison for one
  auto operator<=>(const WeightFormat&) const = default;

  static const WeightFormat kBFloat16;
  static const WeightFormat kE4m3Rows;    // a scale for each row
  static const WeightFormat kE4m3Groups;  // a scale for each 128 columns of a row
  static const WeightFormat kE4m3Blocks;  // a scale for each 128 x 128 numbers
};

// Columns that share a scale in kE4m3Groups and kE4m3Blocks, and rows in kE4m3Blocks.
inline constexpr int64_t kScaleGroup = 128;
inline constexpr int64_t kGroupMultiple = 32;
// Matrices with orders of their own begin at multiples of this many rows.
inline constexpr int64_t kOrderRows = 16;

inline constexpr WeightFormat WeightFormat::kBFloat16 = {};
inline constexpr WeightFormat WeightFormat::kE4m3Rows = {.numbers = WeightNumbers::kE4m3};
inline constexpr WeightFormat WeightFormat::kE4m3Groups = {.numbers = WeightNumbers::kE4m3,
                                                           .group_cols = kScaleGroup};
inline constexpr WeightFormat WeightFormat::kE4m3Blocks = {
    .numbers = WeightNumbers::kE4m3, .group_cols = kScaleGroup, .group_rows = kScaleGroup};

constexpr bool stores_e4m3(WeightFormat format) { return format.numbers == WeightNumbers::kE4m3; }
// Whether numbers are integers, and so have zero points.
constexpr bool stores_integers(WeightFormat format) {
  return format.numbers == WeightNumbers::kUint4 || format.numbers == WeightNumbers::kUint8;
}
constexpr bool stores_gguf(WeightFormat format) {
  return format.numbers == WeightNumbers::kGguf4 || format.numbers == WeightNumbers::kGguf8;
}
// Whether codes have scales of f32.
constexpr bool has_scales(WeightFormat format) {
  return stores_e4m3(format) || stores_integers(format);
}

// Whether a number is a code, which stands for another with the values of its group.
constexpr bool stores_codes(WeightFormat format) {
  return has_scales(format) || stores_gguf(format);
}

// Groups of one row of a format that has scales, and so the row's scales.
constexpr int64_t scales_per_row(WeightFormat format, int64_t num_cols) {
  return format.group_cols == 0 ? 1 : (num_cols + format.group_cols - 1) / format.group_cols;
}

constexpr std::string_view weight_format_name(WeightFormat format) {
  switch (format.numbers) {
    case WeightNumbers::kBFloat16:
      return "bf16";
    case WeightNumbers::kE4m3:
      if (format.group_rows > 1) return "fp8 (e4m3) with a scale for each 128 x 128 numbers";
      return format.group_cols == 0 ? "fp8 (e4m3) with a scale for each row"
                                    : "fp8 (e4m3) with a scale for each 128 columns of a row";
    case WeightNumbers::kUint4:
      return "integers of 4 bits";
    case WeightNumbers::kUint8:
      return "integers of 8 bits";
    case WeightNumbers::kGguf4:
      return "blocks of GGUF with 4 bits";
    case WeightNumbers::kGguf8:
      return "blocks of GGUF with 8 bits";
  }
  return "?";
}

// Bytes of the values of groups and blocks of a row of kGguf4 or kGguf8.
constexpr int64_t gguf_value_bytes(WeightFormat format, int64_t num_cols) {
  const int64_t kinds = format.has_minima ? 2 : 1;
  return kinds * (num_cols / format.group_cols + 2 * (num_cols / format.block_cols));
}

// Bytes of a matrix in a format, scales and zero points of each row included, without orders of
// columns and the padding of a backend. A zero point takes a byte.
constexpr size_t weight_bytes(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  const size_t num_weights = static_cast<size_t>(num_rows) * static_cast<size_t>(num_cols);
  const auto num_scales = static_cast<size_t>(num_rows * scales_per_row(format, num_cols));
  switch (format.numbers) {
    case WeightNumbers::kBFloat16:
      return num_weights * sizeof(BFloat16);
    case WeightNumbers::kE4m3:
      return num_weights + num_scales * sizeof(float);
    case WeightNumbers::kUint4:
      return (num_weights + 1) / 2 + num_scales * (sizeof(float) + 1);
    case WeightNumbers::kUint8:
      return num_weights + num_scales * (sizeof(float) + 1);
    case WeightNumbers::kGguf4:
    case WeightNumbers::kGguf8:
      return num_weights / (format.numbers == WeightNumbers::kGguf4 ? 2 : 1) +
             static_cast<size_t>(num_rows * gguf_value_bytes(format, num_cols));
  }
  return 0;
}

// Bytes of the order of one matrix's columns, i32.
constexpr size_t order_bytes(int64_t num_cols) { return static_cast<size_t>(num_cols) * 4; }

// A weight [num_rows, num_cols] (out features, in features) in the backend's own layout, in device
// memory. The embedding table is one too, so that tied embeddings are stored once. Scales, zero
// points and orders of a format that has them lie in the same memory, where the backend's layout
// puts them.
struct PackedWeight {
  std::byte* data = nullptr;
  int64_t num_rows = 0;
  int64_t num_cols = 0;
  WeightFormat format = {};  // bf16

  bool present() const { return data != nullptr; }
};

// Whether the backend of `device` lays out and multiplies weights of this format of GGUF's blocks.
bool keeps_gguf(Device& device, WeightFormat format);

// Bytes that a packed weight takes on the device of `device`, padding included.
// Errors: kUnsupported for a format that the backend has no layout for.
size_t packed_weight_bytes(Device& device, int64_t num_rows, int64_t num_cols,
                           WeightFormat format = WeightFormat::kBFloat16);

// A view of rows [row_begin, row_begin + num_rows) of a weight in bf16. REQUIRES: row_begin is a
// multiple of kRowsOfPart, which backends lay out together at most.
inline constexpr int64_t kRowsOfPart = 64;
PackedWeight rows_of(Device& device, const PackedWeight& weight, int64_t row_begin,
                     int64_t num_rows);

// Called by a backend for every format that it lays out or multiplies, once before a launch.
// Errors: kUnsupported naming `op` and the format, if it is not `has_kernel`.
void expect_weight_format(std::string_view op, WeightFormat format, WeightFormat has_kernel);

}  // namespace sluice
