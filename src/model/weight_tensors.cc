#include "model/weight_tensors.h"

#include <algorithm>
#include <array>
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

// The source's rows in a tensor with those of others. Errors: also kUnsupported for one in FP8.
CheckpointTensor rows_of_part(const WeightSource& source, const Checkpoint& checkpoint) {
  if (!source.scale_name.empty()) {
    fail(ErrorCode::kUnsupported,
         "tensor \"{}\" has all experts, which is not supported for quantized weights; take a "
         "model with a tensor for each expert, as \"{}\"",
         source.part.name, source.name);
  }
  CheckpointTensor tensor = checkpoint.tensor(source.part.name, source.part.shape);
  const size_t row_bytes = static_cast<size_t>(source.shape[1]) * dtype_bytes(tensor.dtype);
  tensor.file_offset += static_cast<size_t>(source.part.row_begin) * row_bytes;
  tensor.num_bytes = static_cast<size_t>(source.shape[0]) * row_bytes;
  tensor.num_file_bytes = tensor.num_bytes;
  return tensor;
}

}  // namespace

bool is_unread_part(std::string_view name, const ModelConfig& config) {
  constexpr std::array<std::string_view, 3> kPrefixes = {"model.visual.", "visual.", "mtp."};
  const auto begins_name = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return is_hybrid(config.architecture) && std::ranges::any_of(kPrefixes, begins_name);
}

std::optional<std::string> note_unread_parts(const Checkpoint& checkpoint,
                                             const ModelConfig& config) {
  const std::vector<std::string> names = checkpoint.names();
  const auto is_unread = [&](const std::string& name) { return is_unread_part(name, config); };
  const auto count = std::ranges::count_if(names, is_unread);
  if (count == 0) return std::nullopt;
  return fmt::format(
      "{} tensors of vision and of draft layers (mtp) are not read: the text part runs alone",
      count);
}

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
  const std::string& whole = source.part.name;
  const bool is_never_alone = whole == source.name;
  if (is_never_alone || (!checkpoint.has(source.name) && checkpoint.has(whole))) {
    return {rows_of_part(source, checkpoint)};
  }
  if (source.scale_name.empty()) return {checkpoint.tensor(source.name, source.shape)};
  return {checkpoint.fp8_tensor(source.name, source.shape), scale_tensor(source, checkpoint)};
}

}  // namespace sluice
