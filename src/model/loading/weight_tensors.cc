#include "model/loading/weight_tensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

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

// The source's rows in a tensor with those of others. Errors: also kUnsupported for quantized ones.
CheckpointTensor rows_of_part(const WeightSource& source, const Checkpoint& checkpoint) {
  if (has_scales(source.matrix.format)) {
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

// The first of the shapes that the tensor has in the file. Errors: kModel if it has none of them.
std::vector<int64_t> require_shape(const Checkpoint& checkpoint, const std::string& name,
                                   const std::vector<std::vector<int64_t>>& shapes) {
  const auto found = checkpoint.shape_of(name);
  for (const std::vector<int64_t>& shape : shapes) {
    if (found && std::ranges::equal(*found, shape)) return shape;
  }
  throw Error(ErrorCode::kModel,
              fmt::format("tensor \"{}\" {}, but quantization_config of config.json makes it {}; "
                          "fetch both from one place",
                          name, found ? "has shape " + shape_string(*found) : "is missing",
                          shape_string(shapes.front())));
}

// The names and shapes of a form's tensors. A word of 32 bits has neighbours along the columns in
// compressed-tensors and GPTQ, along the rows in AWQ.
struct IntegerNames {
  std::string numbers;
  std::string scales;
  std::string zeros;
  std::string groups;
  std::vector<int64_t> numbers_shape;
  std::vector<int64_t> scales_shape;
  std::vector<int64_t> zeros_shape;
};

IntegerNames integer_names(const WeightSource& source) {
  const std::string module = source.name.substr(0, source.name.rfind('.'));
  const int64_t n = source.shape[0], k = source.shape[1];
  const int64_t groups = scales_per_row(source.matrix.format, k);
  const int64_t per_word = source.matrix.format.numbers == WeightNumbers::kUint4 ? 8 : 4;
  const auto num_words = [&](int64_t count) { return (count + per_word - 1) / per_word; };
  if (source.integers == IntegerForm::kPackQuantized) {
    return {.numbers = module + ".weight_packed",
            .scales = module + ".weight_scale",
            .zeros = module + ".weight_zero_point",
            .groups = module + ".weight_g_idx",
            .numbers_shape = {n, num_words(k)},
            .scales_shape = {n, groups},
            .zeros_shape = {num_words(n), groups}};
  }
  const bool is_awq = source.integers == IntegerForm::kAwq;
  if (n % per_word != 0 || (!is_awq && k % per_word != 0)) {
    fail(ErrorCode::kUnsupported,
         "the weights of {} are {}, but words of {} numbers do not divide that; take the BF16 "
         "version of the model",
         module, shape_string(source.shape), per_word);
  }
  std::vector<int64_t> numbers_shape = {k / per_word, n};
  if (is_awq) numbers_shape = {k, n / per_word};
  return {.numbers = module + ".qweight",
          .scales = module + ".scales",
          .zeros = module + ".qzeros",
          .groups = module + ".g_idx",
          .numbers_shape = std::move(numbers_shape),
          .scales_shape = {groups, n},
          .zeros_shape = {groups, n / per_word}};
}

// Of integers, in the order of IntegerTensors.
std::vector<CheckpointTensor> all_of(const IntegerTensors& tensors) {
  std::vector<CheckpointTensor> all = {tensors.numbers, tensors.scales};
  for (const auto* each : {&tensors.zeros, &tensors.groups, &tensors.shape}) {
    if (*each) all.push_back(**each);
  }
  return all;
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

CheckpointTensor scale_tensor(const WeightSource& source, const Checkpoint& checkpoint) {
  const std::vector<int64_t> shape =
      require_shape(checkpoint, source.scale_name, scale_shapes(source));
  return checkpoint.tensor(source.scale_name, shape);
}

// A g_idx is read, and checked, also where the configuration makes it that of plain groups: GPTQ
// always writes one.
IntegerTensors integer_tensors(const WeightSource& source, const Checkpoint& checkpoint) {
  const IntegerNames names = integer_names(source);
  const auto find = [&](const std::string& name, const std::vector<int64_t>& shape, DType dtype) {
    require_shape(checkpoint, name, {shape});
    return checkpoint.quantized_tensor(name, shape, dtype);
  };
  require_shape(checkpoint, names.scales, {names.scales_shape});
  IntegerTensors tensors{.numbers = find(names.numbers, names.numbers_shape, DType::kI32),
                         .scales = checkpoint.tensor(names.scales, names.scales_shape)};
  if (!source.symmetric) tensors.zeros = find(names.zeros, names.zeros_shape, DType::kI32);
  if (source.matrix.format.num_orders > 0 || checkpoint.has(names.groups)) {
    tensors.groups = find(names.groups, {source.shape[1]}, DType::kI32);
  }
  if (source.integers == IntegerForm::kPackQuantized) {
    const std::string module = source.name.substr(0, source.name.rfind('.'));
    tensors.shape = find(module + ".weight_shape", {2}, DType::kI64);
  }
  return tensors;
}

std::vector<CheckpointTensor> tensors_of(const WeightSource& source, const Checkpoint& checkpoint) {
  const std::string& whole = source.part.name;
  const bool is_never_alone = whole == source.name;
  if (is_never_alone || (!checkpoint.has(source.name) && checkpoint.has(whole))) {
    return {rows_of_part(source, checkpoint)};
  }
  if (source.integers != IntegerForm::kNone) return all_of(integer_tensors(source, checkpoint));
  if (source.scale_name.empty()) return {checkpoint.tensor(source.name, source.shape)};
  return {checkpoint.quantized_tensor(source.name, source.shape, DType::kE4m3),
          scale_tensor(source, checkpoint)};
}

}  // namespace sluice
