#include "model/weight_tensors.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

// The shapes that a tensor of scales may have, the usual one first: publishers write one scale as a
// vector or without dimensions, and those of rows with or without a second dimension.
std::vector<std::vector<int64_t>> scale_shapes(const WeightSource& source) {
  const int64_t rows = source.shape[0];
  switch (source.scales) {
    case WeightScales::kBlocks:
      return {{(rows + kScaleBlockRows - 1) / kScaleBlockRows,
               scales_per_row(WeightFormat::kE4m3Groups, source.shape[1])}};
    case WeightScales::kRows:
      return {{rows, 1}, {rows}};
    case WeightScales::kTensor:
      return {{1}, {}, {1, 1}};
    case WeightScales::kNone:
      break;
  }
  return {};
}

// The rows of one expert in a tensor of all experts. Errors: also kUnsupported for one in FP8.
CheckpointTensor stacked_rows(const WeightSource& source, const Checkpoint& checkpoint) {
  if (!source.scale_name.empty()) {
    fail(ErrorCode::kUnsupported,
         "tensor \"{}\" has all experts, which is not supported for quantized weights; take a "
         "model with a tensor for each expert, as \"{}\"",
         source.stack.name, source.name);
  }
  CheckpointTensor tensor = checkpoint.tensor(source.stack.name, source.stack.shape);
  const size_t row_bytes = static_cast<size_t>(source.shape[1]) * dtype_bytes(tensor.dtype);
  tensor.file_offset += static_cast<size_t>(source.stack.row_begin) * row_bytes;
  tensor.num_bytes = static_cast<size_t>(source.shape[0]) * row_bytes;
  tensor.num_file_bytes = tensor.num_bytes;
  return tensor;
}

}  // namespace

// The first shape that the file has.
CheckpointTensor scale_tensor(const WeightSource& source, const Checkpoint& checkpoint) {
  const auto shapes = scale_shapes(source);
  const auto found = checkpoint.shape_of(source.scale_name);
  for (const std::vector<int64_t>& shape : shapes) {
    if (found && std::ranges::equal(*found, shape)) {
      return checkpoint.tensor(source.scale_name, shape);
    }
  }
  throw Error(
      ErrorCode::kModel,
      fmt::format("tensor \"{}\" {}, but quantization_config of config.json makes it {}; "
                  "fetch both from one place",
                  source.scale_name, found ? "has shape " + shape_string(*found) : "is missing",
                  shape_string(shapes.front())));
}

std::vector<CheckpointTensor> tensors_of(const WeightSource& source, const Checkpoint& checkpoint) {
  const std::string& stack = source.stack.name;
  if (!stack.empty() && !checkpoint.has(source.name) && checkpoint.has(stack)) {
    return {stacked_rows(source, checkpoint)};
  }
  if (source.scale_name.empty()) return {checkpoint.tensor(source.name, source.shape)};
  return {checkpoint.fp8_tensor(source.name, source.shape), scale_tensor(source, checkpoint)};
}

}  // namespace sluice
