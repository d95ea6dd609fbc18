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

using Range = CheckpointTensor::Range;

// What a source reads of the tensor of its name, in rows and columns of the matrix or in elements
// of the vector.
struct SourceRanges {
  Range rows;
  Range columns;
};

SourceRanges ranges_of(const WeightSource& source) {
  const bool is_vector = source.shape.size() == 1;
  return {.rows = {source.first_row(), source.shape.front()},
          .columns = {source.slice.col_begin, is_vector ? 1 : source.shape.back()}};
}

// The units of `size` that have a part of it.
Range in_units(const Range& range, int64_t size) {
  const int64_t first = range.begin / size;
  return {first, (range.begin + range.count + size - 1) / size - first};
}

// The part of a tensor of two dimensions, or of one, that a source reads.
CheckpointTensor cut(const CheckpointTensor& tensor, const WeightSource& source, const Range& rows,
                     const Range& columns) {
  if (source.reads_whole()) return tensor;
  return tensor.part(tensor.shape.size() < 2 ? 1 : tensor.shape.back(), rows, columns);
}

// The shapes that a tensor of scales may have, the usual one first: publishers write one scale as a
// vector or without dimensions, and those of rows with or without a second dimension.
std::vector<std::vector<int64_t>> scale_shapes(const WeightSource& source) {
  const std::vector<int64_t> shape = source.tensor_shape();
  const int64_t rows = shape[0];
  switch (source.scales) {
    case WeightScales::kBlocks:
      return {{(rows + kScaleBlockRows - 1) / kScaleBlockRows,
               scales_per_row(WeightFormat::kE4m3Groups, shape[1])}};
    case WeightScales::kRows:
      return {{rows, 1}, {rows}};
    case WeightScales::kTensor:
      return {{1}, {}, {1, 1}};
    case WeightScales::kNone:
      break;
  }
  return {};
}

// Whether the source's rows are in a tensor of all experts.
bool is_in_stack(const WeightSource& source, const Checkpoint& checkpoint) {
  return !checkpoint.has(source.name) && !source.is_range() && checkpoint.has(source.part.name);
}

// Of transformers' method fp8 alone it is known how it names the scales of such a tensor.
constexpr std::string_view kStackScales = "_scale_inv";

// The tensor of all experts. Errors: also kUnsupported for other quantized ones.
CheckpointTensor stack_of(const WeightSource& source, const Checkpoint& checkpoint) {
  const TensorPart& part = source.part;
  if (source.scale_name.ends_with(kStackScales)) {
    return checkpoint.quantized_tensor(part.name, part.shape, DType::kE4m3);
  }
  if (has_scales(source.matrix.format)) {
    fail(ErrorCode::kUnsupported,
         "tensor \"{}\" has all experts, which is supported for weights in bf16 and of the method "
         "fp8; take a model with a tensor for each expert, as \"{}\"",
         part.name, source.name);
  }
  return checkpoint.tensor(part.name, part.shape);
}

// The source's rows there.
CheckpointTensor rows_of_stack(const WeightSource& source, const Checkpoint& checkpoint) {
  return stack_of(source, checkpoint)
      .part(source.part.shape.back(), {source.part.row_begin, source.shape[0]},
            {source.slice.col_begin, source.shape[1]});
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
  const std::vector<int64_t> shape = source.tensor_shape();
  const int64_t n = shape[0], k = shape[1];
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
         module, shape_string(shape), per_word);
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

// Numbers in a word. Errors: kUnsupported for a slice that cuts words.
int64_t numbers_per_word(const WeightSource& source) {
  const int64_t count = source.matrix.format.numbers == WeightNumbers::kUint4 ? 8 : 4;
  const TensorSlice& slice = source.slice;
  const bool rows_fit = slice.num_rows == 0 || source.shape[0] % count == 0;
  const bool cols_fit = slice.num_cols == 0 || source.shape[1] % count == 0;
  if (rows_fit && cols_fit) return count;
  fail(ErrorCode::kUnsupported,
       "a rank's part of {} is {}, but words of {} numbers do not divide that; take a smaller "
       "tensor_parallel_size or the BF16 version of the model",
       source.name, shape_string(source.shape), count);
}

// What a source reads of each tensor of integers; the columns of a whole matrix have groups in
// order if it reads a part of them. Words of rows may begin before a range of rows.
void cut_integers(const WeightSource& source, IntegerTensors& tensors) {
  if (source.reads_whole()) return;
  const int64_t per_word = numbers_per_word(source);
  const WeightFormat format = source.matrix.format;
  const auto [n, k] = ranges_of(source);
  const Range n_words = in_units(n, per_word);
  const Range k_words = in_units(k, per_word);
  const Range groups = format.group_cols == 0 ? Range{0, 1} : in_units(k, format.group_cols);
  const auto apply = [&](CheckpointTensor& tensor, const Range& rows, const Range& columns) {
    tensor = cut(tensor, source, rows, columns);
  };
  const bool by_rows = source.integers == IntegerForm::kPackQuantized;
  if (by_rows) {
    apply(tensors.numbers, n, k_words);
  } else if (source.integers == IntegerForm::kAwq) {
    apply(tensors.numbers, k, n_words);
  } else {
    apply(tensors.numbers, k_words, n);
  }
  by_rows ? apply(tensors.scales, n, groups) : apply(tensors.scales, groups, n);
  if (tensors.zeros) {
    by_rows ? apply(*tensors.zeros, n_words, groups) : apply(*tensors.zeros, groups, n_words);
  }
}

// Of integers, in the order of IntegerTensors.
std::vector<CheckpointTensor> all_of(const IntegerTensors& tensors) {
  std::vector<CheckpointTensor> all = {tensors.numbers, tensors.scales};
  for (const auto* each : {&tensors.zeros, &tensors.groups, &tensors.shape}) {
    if (*each) all.push_back(**each);
  }
  return all;
}

// The scales of all experts, one for each or for blocks of its matrix, which has gate and up in
// one.
CheckpointTensor stack_of_scales(const WeightSource& source, const Checkpoint& checkpoint) {
  const int64_t num_experts = source.part.shape[0];
  const std::string name = source.part.name + std::string(kStackScales);
  std::vector<std::vector<int64_t>> shapes = {{num_experts, 1, 1}, {num_experts}};
  if (source.scales == WeightScales::kBlocks) {
    shapes = {{num_experts, in_units({0, source.part.shape[1]}, kScaleBlockRows).count,
               scales_per_row(WeightFormat::kE4m3Groups, source.part.shape[2])}};
  }
  return checkpoint.scale_tensor(name, require_shape(checkpoint, name, shapes));
}

// Those of the source. Blocks of an expert begin with its first row.
CheckpointTensor scales_of_stack(const WeightSource& source, const Checkpoint& checkpoint) {
  const CheckpointTensor scales = stack_of_scales(source, checkpoint);
  const int64_t expert = source.part.row_begin / source.part.shape[1];
  if (source.scales == WeightScales::kTensor) return scales.part(1, {expert, 1}, {0, 1});
  Range rows = in_units({first_scaled_row(source, checkpoint), source.shape[0]}, kScaleBlockRows);
  rows.begin += expert * scales.shape[1];
  return scales.part(scales.shape[2], rows,
                     in_units({source.slice.col_begin, source.shape[1]}, kScaleGroup));
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

std::optional<std::string> note_kv_scales(const Checkpoint& checkpoint) {
  const auto count = std::ranges::count_if(checkpoint.names(), is_kv_scale);
  if (count == 0) return std::nullopt;
  return fmt::format(
      "{} scales of keys and values (k_scale, v_scale) are not read: KV in 8 bits has a scale for "
      "each row, made when it is written",
      count);
}

std::vector<CheckpointTensor> whole_stack(const WeightSource& source,
                                          const Checkpoint& checkpoint) {
  std::vector<CheckpointTensor> tensors = {stack_of(source, checkpoint)};
  if (!source.scale_name.empty()) tensors.push_back(stack_of_scales(source, checkpoint));
  return tensors;
}

int64_t first_scaled_row(const WeightSource& source, const Checkpoint& checkpoint) {
  if (!is_in_stack(source, checkpoint)) return source.first_row();
  return source.part.row_begin % source.part.shape[1];
}

CheckpointTensor scale_tensor(const WeightSource& source, const Checkpoint& checkpoint) {
  if (is_in_stack(source, checkpoint)) return scales_of_stack(source, checkpoint);
  const std::vector<int64_t> shape =
      require_shape(checkpoint, source.scale_name, scale_shapes(source));
  const CheckpointTensor tensor = checkpoint.scale_tensor(source.scale_name, shape);
  const auto [rows, columns] = ranges_of(source);
  if (source.scales == WeightScales::kTensor) return tensor;
  if (source.scales == WeightScales::kRows) return cut(tensor, source, rows, {0, 1});
  return cut(tensor, source, in_units(rows, kScaleBlockRows), in_units(columns, kScaleGroup));
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
    tensors.groups = find(names.groups, {source.tensor_shape()[1]}, DType::kI32);
  }
  if (source.integers == IntegerForm::kPackQuantized) {
    const std::string module = source.name.substr(0, source.name.rfind('.'));
    tensors.shape = find(module + ".weight_shape", {2}, DType::kI64);
  }
  cut_integers(source, tensors);
  return tensors;
}

std::vector<CheckpointTensor> tensors_of(const WeightSource& source, const Checkpoint& checkpoint) {
  if (is_in_stack(source, checkpoint)) {
    std::vector<CheckpointTensor> tensors = {rows_of_stack(source, checkpoint)};
    if (!source.scale_name.empty()) tensors.push_back(scales_of_stack(source, checkpoint));
    return tensors;
  }
  if (source.integers != IntegerForm::kNone) return all_of(integer_tensors(source, checkpoint));
  const std::vector<int64_t> shape = source.tensor_shape();
  const auto [rows, columns] = ranges_of(source);
  if (source.scale_name.empty()) {
    return {cut(checkpoint.tensor(source.name, shape), source, rows, columns)};
  }
  return {cut(checkpoint.quantized_tensor(source.name, shape, DType::kE4m3), source, rows, columns),
          scale_tensor(source, checkpoint)};
}

}  // namespace sluice
