// Decodes row by row, on the threads that pack: words of AWQ and GPTQ hold one or eight rows for
// each column, so the 16 rows of a panel pass over the same cache lines.
#include "model/integer_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "model/tensor_values.h"

namespace sluice {
namespace {

// The shift of row j of eight in a word of AWQ.
constexpr int kAwqShifts[] = {0, 16, 4, 20, 8, 24, 12, 28};

[[noreturn]] void fail_tensor(const CheckpointTensor& tensor, const std::string& what) {
  throw Error(ErrorCode::kModel,
              fmt::format("tensor \"{}\" {}; fetch the file again", tensor.name, what),
              tensor.file->path().string());
}

// The number at `index` of packed words, in bits of its word.
uint32_t packed_at(const uint32_t* words, int64_t index, int bits) {
  return words[index * bits / 32] >> (index * bits % 32);
}

}  // namespace

IntegerRows::Layout IntegerRows::layout_of(const WeightSource& source) {
  const WeightFormat format = source.matrix.format;
  return {.form = source.integers,
          .n = source.shape[0],
          .k = source.shape[1],
          .groups = scales_per_row(format, source.shape[1]),
          .group_cols = format.group_cols == 0 ? source.shape[1] : format.group_cols,
          .bits = format.numbers == WeightNumbers::kUint4 ? 4 : 8};
}

IntegerRows::IntegerRows(const WeightSource& source, const Checkpoint& checkpoint)
    : layout_(layout_of(source)) {
  const IntegerTensors tensors = integer_tensors(source, checkpoint);
  if (tensors.shape && read_integers_of<int64_t>(*tensors.shape) != source.shape) {
    fail_tensor(*tensors.shape, fmt::format("is not {}, the matrix that config.json makes it",
                                            shape_string(source.shape)));
  }
  words_ = read_integers_of<uint32_t>(tensors.numbers);
  scales_.per_row = layout_.groups;
  read_scales(tensors);
  read_zeros(tensors);
  read_order(tensors, source.matrix.format.num_orders > 0);
}

// AutoRound writes negative scales, where the largest number of a group is negative.
void IntegerRows::read_scales(const IntegerTensors& tensors) {
  const std::vector<float> values = read_floats(tensors.scales);
  scales_.values.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0 || !std::isfinite(values[i])) {
      fail_tensor(tensors.scales,
                  fmt::format("has {} at {}; a scale is finite and not 0", values[i], i));
    }
    const auto at = static_cast<int64_t>(i);
    const bool by_rows = layout_.form == IntegerForm::kPackQuantized;
    const int64_t place = by_rows ? at : at % layout_.n * layout_.groups + at / layout_.n;
    scales_.values[static_cast<size_t>(place)] = values[i];
  }
}

uint8_t IntegerRows::zero_of(const std::vector<uint32_t>& words, int64_t row, int64_t group) const {
  const int64_t row_words = layout_.n / layout_.per_word();
  uint32_t zero = 0;
  switch (layout_.form) {
    case IntegerForm::kPackQuantized:
      zero = words[static_cast<size_t>(row / layout_.per_word() * layout_.groups + group)] >>
             (row % layout_.per_word() * layout_.bits);
      break;
    case IntegerForm::kAwq:
      zero = words[static_cast<size_t>(group * row_words + row / 8)] >> kAwqShifts[row % 8];
      break;
    case IntegerForm::kGptq:
    case IntegerForm::kGptqV2:
      zero = words[static_cast<size_t>(group * row_words + row / layout_.per_word())];
      if (layout_.form == IntegerForm::kGptq) zero += layout_.ones();
      zero >>= row % layout_.per_word() * layout_.bits;
      break;
    case IntegerForm::kNone:
      break;
  }
  return static_cast<uint8_t>(zero & layout_.mask());
}

// Without zero points numbers are symmetric about half of the range.
void IntegerRows::read_zeros(const IntegerTensors& tensors) {
  scales_.zeros.assign(scales_.values.size(), static_cast<uint8_t>(1 << (layout_.bits - 1)));
  if (!tensors.zeros) return;
  const auto words = read_integers_of<uint32_t>(*tensors.zeros);
  for (int64_t row = 0; row < layout_.n; ++row) {
    for (int64_t group = 0; group < layout_.groups; ++group) {
      scales_.zeros[static_cast<size_t>(row * layout_.groups + group)] = zero_of(words, row, group);
    }
  }
}

void IntegerRows::read_order(const IntegerTensors& tensors, bool is_ordered) {
  if (!tensors.groups) return;
  const auto group_of = read_integers_of<int32_t>(*tensors.groups);
  std::vector<int64_t> next;  // the place of the next column of each group
  for (int64_t g = 0; g < layout_.groups; ++g) next.push_back(g * layout_.group_cols);
  order_.resize(group_of.size());
  for (size_t column = 0; column < group_of.size(); ++column) {
    const int32_t group = group_of[column];
    const bool is_group = group >= 0 && group < layout_.groups;
    int64_t* const place = is_group ? &next[static_cast<size_t>(group)] : nullptr;
    if (!is_group || *place == std::min((group + 1) * layout_.group_cols, layout_.k)) {
      fail_tensor(*tensors.groups,
                  fmt::format("puts column {} into group {}, but there are {} groups of {} columns",
                              column, group, layout_.groups, layout_.group_cols));
    }
    order_[static_cast<size_t>((*place)++)] = static_cast<int32_t>(column);
  }
  if (!is_ordered && !std::ranges::is_sorted(order_)) {
    fail_tensor(*tensors.groups,
                "orders columns, but quantization_config of config.json does not say so "
                "(desc_act, actorder)");
  }
  if (is_ordered) scales_.order = order_;
}

void IntegerRows::read_row(int64_t row, std::byte* dst) const {
  const auto each = [&](const auto& number) {
    for (int64_t i = 0; i < layout_.k; ++i) {
      const int64_t column = order_.empty() ? i : order_[static_cast<size_t>(i)];
      dst[i] = static_cast<std::byte>(number(column) & layout_.mask());
    }
  };
  const uint32_t* const words = words_.data();
  const int bits = layout_.bits;
  if (layout_.form == IntegerForm::kPackQuantized) {
    const int64_t row_words = (layout_.k * bits + 31) / 32;
    each([&](int64_t column) { return packed_at(words + row * row_words, column, bits); });
  } else if (layout_.form == IntegerForm::kAwq) {
    const int shift = kAwqShifts[row % 8];
    each([&](int64_t column) { return words[column * (layout_.n / 8) + row / 8] >> shift; });
  } else {
    const int64_t per_word = layout_.per_word();
    each([&](int64_t column) {
      return words[column / per_word * layout_.n + row] >> (column % per_word * bits);
    });
  }
}

void IntegerRows::read(size_t offset, std::span<std::byte> dst) const noexcept {
  const auto row_bytes = static_cast<size_t>(layout_.k);
  for (size_t done = 0; done < dst.size(); done += row_bytes) {
    read_row(static_cast<int64_t>((offset + done) / row_bytes), dst.data() + done);
  }
}

}  // namespace sluice
