// PackedWeight: a weight in device memory, in one of the formats that products read.
//
// model/weights makes them while loading; matmul, gated_product and embedding read them. Thread
// rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace sluice {

class Device;

// How the numbers of a weight are stored. pack_weight converts a checkpoint's numbers to it.
//
// A number of a format with scales stands for its e4m3 times an f32 scale, which belongs to a row:
// one for all columns, or one for each 128. Whole matrices are stored with a scale for each row,
// too, so that matrices side by side in one weight keep their own, and so are blocks of 128 x 128
// unless all these matrices begin at multiples of 128 rows: kE4m3Blocks, which a backend may store
// as kE4m3Groups. Scales are stored as they came, neither merged nor rounded.
enum class WeightFormat : uint8_t { kBFloat16, kE4m3Rows, kE4m3Groups, kE4m3Blocks };

// Columns that share a scale in kE4m3Groups and kE4m3Blocks, and rows in kE4m3Blocks.
inline constexpr int64_t kScaleGroup = 128;

constexpr bool has_scales(WeightFormat format) {
  return format == WeightFormat::kE4m3Rows || format == WeightFormat::kE4m3Groups ||
         format == WeightFormat::kE4m3Blocks;
}

// Scales of one row of a format that has them.
constexpr int64_t scales_per_row(WeightFormat format, int64_t num_cols) {
  const bool by_row = format == WeightFormat::kBFloat16 || format == WeightFormat::kE4m3Rows;
  return by_row ? 1 : (num_cols + kScaleGroup - 1) / kScaleGroup;
}

constexpr std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBFloat16:
      return "bf16";
    case WeightFormat::kE4m3Rows:
      return "fp8 (e4m3) with a scale for each row";
    case WeightFormat::kE4m3Groups:
      return "fp8 (e4m3) with a scale for each 128 columns of a row";
    case WeightFormat::kE4m3Blocks:
      return "fp8 (e4m3) with a scale for each 128 x 128 numbers";
  }
  return "?";
}

// Bytes of a matrix in a format, scales of each row included, without the padding of a backend.
constexpr size_t weight_bytes(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  const size_t num_weights = static_cast<size_t>(num_rows) * static_cast<size_t>(num_cols);
  switch (format) {
    case WeightFormat::kBFloat16:
      return num_weights * sizeof(BFloat16);
    case WeightFormat::kE4m3Rows:
    case WeightFormat::kE4m3Groups:
    case WeightFormat::kE4m3Blocks:
      return num_weights + static_cast<size_t>(num_rows * scales_per_row(format, num_cols)) * 4;
  }
  return 0;
}

// A weight [num_rows, num_cols] (out features, in features) in the backend's own layout, in device
// memory. The embedding table is one too, so that tied embeddings are stored once. Scales of a
// format that has them lie in the same memory, where the backend's layout puts them.
struct PackedWeight {
  std::byte* data = nullptr;
  int64_t num_rows = 0;
  int64_t num_cols = 0;
  WeightFormat format = WeightFormat::kBFloat16;

  bool present() const { return data != nullptr; }
};

// Bytes that a packed weight takes on the device of `device`, padding included.
// Errors: kUnsupported for a format that the backend has no layout for.
size_t packed_weight_bytes(Device& device, int64_t num_rows, int64_t num_cols,
                           WeightFormat format = WeightFormat::kBFloat16);

// Called by a backend for every format that it lays out or multiplies, once before a launch.
// Errors: kUnsupported naming `op` and the format, if it is not `has_kernel`.
void expect_weight_format(std::string_view op, WeightFormat format, WeightFormat has_kernel);

}  // namespace sluice
