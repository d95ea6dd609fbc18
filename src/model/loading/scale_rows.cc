// Reads scales, and gives each row its own where rows of a block part.
#include "model/loading/scale_rows.h"

#include <cmath>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "core/error.h"
#include "model/loading/tensor_values.h"
#include "model/loading/weight_tensors.h"
#include "model/weight_layout.h"

namespace sluice {
namespace {

// The scales of `num_rows` rows that begin `skipped` rows after a block does, one for each row.
ScaleRows scales_of_rows(int64_t skipped, int64_t num_rows, const ScaleRows& blocks) {
  ScaleRows by_row{.per_row = blocks.per_row};
  for (int64_t row = skipped; row < skipped + num_rows; ++row) {
    const auto from = blocks.values.begin() + row / blocks.scale_rows * blocks.per_row;
    by_row.values.insert(by_row.values.end(), from, from + blocks.per_row);
  }
  return by_row;
}

// `rows` with zeros where rows are padded: what padded heads have of `per_row` values a row.
template <typename Value>
std::vector<Value> padded_values(const HeadPadding& padding, const std::vector<Value>& rows,
                                 int64_t per_row) {
  if (rows.empty()) return {};
  const std::vector<std::byte> bytes = pad_heads(padding, std::as_bytes(std::span(rows)),
                                                 static_cast<size_t>(per_row) * sizeof(Value));
  std::vector<Value> padded(bytes.size() / sizeof(Value));
  std::memcpy(padded.data(), bytes.data(), bytes.size());
  return padded;
}

}  // namespace

ScaleRows read_scales(const WeightSource& source, const Checkpoint& checkpoint) {
  ScaleRows scales;
  if (source.scale_name.empty()) return scales;
  const CheckpointTensor tensor = scale_tensor(source, checkpoint);
  const std::vector<std::byte> bytes = read_whole(tensor);
  scales.values.resize(bytes.size() / dtype_bytes(tensor.dtype));
  for (size_t i = 0; i < scales.values.size(); ++i) {
    const float scale = element_as_float(bytes.data(), tensor.dtype, static_cast<int64_t>(i));
    if (!(scale > 0) || std::isinf(scale)) {
      throw Error(
          ErrorCode::kModel,
          fmt::format("tensor \"{}\" has {} at {}; a scale is above 0 and finite, fetch the "
                      "file again",
                      tensor.name, scale, i),
          tensor.file->path().string());
    }
    scales.values[i] = scale;
  }
  scales.scale_rows = source.scales == WeightScales::kBlocks ? kScaleBlockRows
                      : source.scales == WeightScales::kRows ? 1
                                                             : source.shape[0];
  scales.per_row = scales_per_row(source.matrix.format, source.shape[1]);
  const int64_t skipped = source.scales == WeightScales::kBlocks
                              ? first_scaled_row(source, checkpoint) % kScaleBlockRows
                              : 0;
  return skipped == 0 ? scales : scales_of_rows(skipped, source.shape[0], scales);
}

ScaleRows padded_scales(const WeightSource& source, const ScaleRows& scales) {
  ScaleRows by_row{.order = scales.order, .per_row = scales.per_row};
  for (int64_t row = 0; row < source.shape[0]; ++row) {
    const int64_t at = row / scales.scale_rows * scales.per_row;
    const auto from = scales.values.begin() + at;
    by_row.values.insert(by_row.values.end(), from, from + scales.per_row);
    if (scales.zeros.empty()) continue;
    const auto zeros = scales.zeros.begin() + at;
    by_row.zeros.insert(by_row.zeros.end(), zeros, zeros + scales.per_row);
  }
  by_row.values = padded_values(source.padding, by_row.values, scales.per_row);
  by_row.zeros = padded_values(source.padding, by_row.zeros, scales.per_row);
  return by_row;
}

}  // namespace sluice
