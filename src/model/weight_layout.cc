// Cuts the memory of weights and lists the tensors that fill it.
//
// The same calls plan a layout, with an arena without memory, and make it: so what is planned is
// what is taken.
#include "model/weight_layout.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "model/gguf/gguf_formats.h"

namespace sluice {

// Matrices that are multiplied as one have one format: a kernel reads all rows of a weight alike.
// Each part of a matrix has an order of columns of its own, and blocks stay blocks only where those
// of each part begin at one of the whole.
WeightFormat WeightLayout::format_of(std::span<const std::string> modules, int64_t num_cols,
                                     size_t num_parts, int64_t part_rows) const {
  if (quantization_.has_gguf()) return gguf_format_of(modules, num_cols);
  WeightFormat format = WeightFormat::kBFloat16;
  for (const std::string& module : modules) {
    const WeightFormat own = quantization_.format_of(module);
    if (&module != modules.data() && own != format) {
      fail(ErrorCode::kUnsupported,
           "quantization_config leaves out one of {} and {}, whose weights lie in one matrix; "
           "choose a model that quantizes both or none",
           modules.front(), module);
    }
    format = own;
  }
  if (format == WeightFormat::kE4m3Groups && part_rows % kScaleGroup == 0) {
    return WeightFormat::kE4m3Blocks;
  }
  format.num_orders *= static_cast<int32_t>(num_parts);
  return format;
}

// A rank may have columns that end within a block.
WeightFormat WeightLayout::gguf_format_of(std::span<const std::string> modules,
                                          int64_t num_cols) const {
  if (modules.empty()) return WeightFormat::kBFloat16;
  WeightFormat format = quantization_.format_of(modules.front());
  for (const std::string& module : modules) {
    const WeightFormat own = quantization_.format_of(module);
    format = join_gguf(format, own);
    if (!stores_gguf(format) || num_cols % own.block_cols != 0) return WeightFormat::kBFloat16;
  }
  return keeps_gguf(device_, format) ? format : WeightFormat::kBFloat16;
}

PackedWeight WeightLayout::matrix(int64_t num_rows, int64_t num_cols,
                                  std::initializer_list<std::string> modules, int64_t part_rows) {
  const std::span<const std::string> names{modules.begin(), modules.size()};
  const WeightFormat format = format_of(names, num_cols, modules.size(), part_rows);
  count_orders(names, modules.size(), format);
  return {.data = arena_.take(packed_weight_bytes(device_, num_rows, num_cols, format)),
          .num_rows = num_rows,
          .num_cols = num_cols,
          .format = format};
}

// One format for all: experts lie at equal distances, and one product serves them.
PackedExperts WeightLayout::experts(int32_t num_experts, int64_t num_rows, int64_t num_cols,
                                    const std::string& prefix,
                                    std::initializer_list<const char*> modules, int64_t part_rows) {
  std::vector<std::string> names;
  for (int32_t e = 0; e < num_experts; ++e) {
    for (const char* module : modules) names.push_back(fmt::format("{}{}.{}", prefix, e, module));
  }
  const WeightFormat format = format_of(names, num_cols, modules.size(), part_rows);
  count_orders(names, modules.size(), format);
  const size_t stride = packed_weight_bytes(device_, num_rows, num_cols, format);
  return {.first = {.data = expert_arena_.take(stride * static_cast<size_t>(num_experts)),
                    .num_rows = num_rows,
                    .num_cols = num_cols,
                    .format = format},
          .num_experts = num_experts,
          .stride_bytes = stride};
}

// The stack's rows are those of experts one after the other, as their matrices are packed.
void WeightLayout::add_expert_rows(const ExpertRows& rows, const PackedExperts& experts) {
  const PackedWeight matrix = experts.expert(rows.expert);
  add_rows(rows.name, matrix, rows.row_begin, rows.num_rows, rows.slice);
  WeightSource& source = sources_.back();
  source.active_share = rows.active_share;
  // The parts of an expert's matrix are cut alike, so they have as many times more rows in the
  // file.
  const std::vector<int64_t> tensor = source.tensor_shape();
  const int64_t times = tensor.front() / rows.num_rows;
  source.part = {
      .name = rows.stack_name,
      .shape = {experts.num_experts, matrix.num_rows * times, tensor.back()},
      .row_begin = (rows.expert * matrix.num_rows + rows.row_begin) * times + rows.slice.row_begin};
}

// The tensor of scales has the name of the weight with another ending; whether it is there is known
// when it is read.
void WeightLayout::add_rows(const std::string& name, const PackedWeight& matrix, int64_t row_begin,
                            int64_t num_rows, const TensorSlice& slice) {
  sources_.push_back({.name = name,
                      .shape = {num_rows, matrix.num_cols},
                      .matrix = matrix,
                      .row_begin = row_begin,
                      .vector = {},
                      .slice = slice});
  check_slice(sources_.back());
  if (stores_integers(matrix.format)) add_integers(sources_.back());
  if (!stores_e4m3(matrix.format)) return;
  constexpr std::string_view kWeight = ".weight";
  sources_.back().scale_name =
      name.substr(0, name.size() - kWeight.size()) + quantization_.scale_suffix;
  sources_.back().scales = quantization_.scales;
}

// A scale is that of some rows and columns, which lie on one rank.
void WeightLayout::check_slice(const WeightSource& source) const {
  const WeightFormat format = source.matrix.format;
  if (!source.slice.present() || !has_scales(format)) return;
  const bool has_blocks = quantization_.scales == WeightScales::kBlocks;
  const int64_t group_rows = has_blocks ? kScaleBlockRows : 1;
  const int64_t group_cols = std::max<int64_t>(format.group_cols, 1);
  const bool rows_fit = source.slice.num_rows == 0 || source.shape[0] % group_rows == 0;
  const bool cols_fit = source.slice.num_cols == 0 || source.shape[1] % group_cols == 0;
  if (!rows_fit || !cols_fit) {
    fail(ErrorCode::kUnsupported,
         "{} has a scale for {} rows and {} columns, but a rank's part of it is {} x {}; take a "
         "smaller tensor_parallel_size or the BF16 version of the model",
         source.name, group_rows, group_cols, source.shape[0], source.shape[1]);
  }
  if (format.num_orders > 0) {
    fail(ErrorCode::kUnsupported,
         "the weights have orders of columns (desc_act, actorder), which cannot be divided over "
         "ranks; take a model without, or a tensor_parallel_size of 1");
  }
}

// A module whose rows lie in two matrices has the same number in both: it is the first of each.
void WeightLayout::count_orders(std::span<const std::string> modules, size_t num_parts,
                                WeightFormat format) {
  if (format.num_orders == 0) return;
  for (size_t i = 0; i < modules.size(); ++i) {
    order_of_[modules[i]] = static_cast<int32_t>(i % num_parts);
  }
}

void WeightLayout::add_integers(WeightSource& source) const {
  source.integers = quantization_.integers;
  source.symmetric = quantization_.symmetric;
  if (source.matrix.format.num_orders == 0) return;
  if (source.row_begin % kOrderRows != 0) {
    fail(
        ErrorCode::kUnsupported,
        "{} begins at row {} of a matrix, but with an order of columns (desc_act, actorder) it has "
        "to begin at a multiple of {}; take a file without",
        source.name, source.row_begin, kOrderRows);
  }
  const std::string_view name = source.name;
  source.order_index = order_of_.find(name.substr(0, name.rfind('.')))->second;
}

void WeightLayout::add_vector(const std::string& name, const TensorView& vector, float dummy_mean,
                              const TensorSlice& slice) {
  sources_.push_back({.name = name,
                      .shape = {vector.num_elements()},
                      .matrix = {},
                      .vector = vector,
                      .dummy_mean = dummy_mean,
                      .slice = slice});
}

void WeightLayout::add_taps(const std::string& name, const TensorView& taps, int64_t begin,
                            int64_t num_channels, const TensorSlice& slice) {
  sources_.push_back({.name = name,
                      .shape = {num_channels, 1, taps.dim(0)},
                      .matrix = {},
                      .row_begin = begin,
                      .vector = taps,
                      .transposed = true,
                      .slice = slice});
}

void WeightLayout::add_row_range(const RowRange& range, const PackedWeight& matrix,
                                 int64_t row_begin) {
  add_rows(range.name, matrix, row_begin, range.num_rows);
  sources_.back().part = {.name = range.name,
                          .shape = {range.num_tensor_rows, matrix.num_cols},
                          .row_begin = range.from};
}

void WeightLayout::add_head_range(const RowRange& range, const PackedWeight& matrix, int64_t head,
                                  const HeadPadding& padding) {
  add_row_range(range, matrix, head * padding.padded_head_dim);
  sources_.back().heads = HeadAxis::kRows;
  sources_.back().padding = padding;
}

// In the matrix heads are padded, in the file they are not.
void WeightLayout::add_head_rows(const std::string& name, const PackedWeight& matrix,
                                 int64_t head_begin, int64_t num_heads, const HeadPadding& padding,
                                 const TensorSlice& slice) {
  add_rows(name, matrix, head_begin * padding.padded_head_dim, num_heads * padding.head_dim, slice);
  sources_.back().heads = HeadAxis::kRows;
  sources_.back().padding = padding;
}

// A vector is stored as one column whose rows are head channels.
void WeightLayout::add_head_vector(const std::string& name, const TensorView& vector,
                                   const HeadPadding& padding, float dummy_mean,
                                   const TensorSlice& slice) {
  add_vector(name, vector, dummy_mean, slice);
  WeightSource& source = sources_.back();
  source.shape[0] = source.shape[0] / padding.padded_head_dim * padding.head_dim;
  source.heads = HeadAxis::kRows;
  source.padding = padding;
}

// Columns of padding lie between columns of the file. A scale for a group of columns of the file
// would then belong to others in memory.
void WeightLayout::add_head_columns(const std::string& name, const PackedWeight& matrix,
                                    const HeadPadding& padding, const TensorSlice& slice) {
  if (padding.present() && matrix.format.group_cols != 0) {
    fail(
        ErrorCode::kUnsupported,
        "{} has columns of heads of {} channels, which are padded to {}: its scales for {} columns "
        "would not fit; take the model with a scale for each row, or in BF16",
        name, padding.head_dim, padding.padded_head_dim, matrix.format.group_cols);
  }
  add_rows(name, matrix, 0, matrix.num_rows, slice);
  WeightSource& source = sources_.back();
  source.shape[1] = matrix.num_cols / padding.padded_head_dim * padding.head_dim;
  source.heads = HeadAxis::kColumns;
  source.padding = padding;
}

}  // namespace sluice
