// Decodes on the threads that pack, the rows of a panel at a time.
#include "model/loading/integer_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "model/loading/tensor_values.h"

namespace sluice {
namespace {

// The shift of row j of eight in a word of AWQ.
constexpr int kAwqShifts[] = {0, 16, 4, 20, 8, 24, 12, 28};

[[noreturn]] void fail_tensor(const CheckpointTensor& tensor, const std::string& what) {
  throw Error(ErrorCode::kModel,
              fmt::format("tensor \"{}\" {}; fetch the file again", tensor.name, what),
              tensor.file->path().string());
}

// Words [rows, cols] as [cols, rows], in squares of a cache line.
std::vector<uint32_t> transposed(const std::vector<uint32_t>& words, int64_t rows, int64_t cols) {
  constexpr int64_t kSide = 16;
  std::vector<uint32_t> turned(words.size());
  for (int64_t row = 0; row < rows; row += kSide) {
    for (int64_t col = 0; col < cols; col += kSide) {
      for (int64_t c = col; c < std::min(col + kSide, cols); ++c) {
        for (int64_t r = row; r < std::min(row + kSide, rows); ++r) {
          turned[static_cast<size_t>(c * rows + r)] = words[static_cast<size_t>(r * cols + c)];
        }
      }
    }
  }
  return turned;
}

}  // namespace

IntegerRows::Layout IntegerRows::layout_of(const WeightSource& source) {
  const WeightFormat format = source.matrix.format;
  const int bits = format.numbers == WeightNumbers::kUint4 ? 4 : 8;
  return {.form = source.integers,
          .n = source.shape[0],
          .k = source.shape[1],
          .groups = scales_per_row(format, source.shape[1]),
          .group_cols = format.group_cols == 0 ? source.tensor_shape()[1] : format.group_cols,
          .bits = bits,
          .skipped_rows = source.first_row() % (32 / bits)};
}

IntegerRows::IntegerRows(const WeightSource& source, const Checkpoint& checkpoint)
    : layout_(layout_of(source)) {
  const IntegerTensors tensors = integer_tensors(source, checkpoint);
  const std::vector<int64_t> whole = source.tensor_shape();
  if (tensors.shape && read_integers_of<int64_t>(*tensors.shape) != whole) {
    fail_tensor(*tensors.shape, fmt::format("is not {}, the matrix that config.json makes it",
                                            shape_string(whole)));
  }
  words_ = read_integers_of<uint32_t>(tensors.numbers);
  if (layout_.form == IntegerForm::kAwq) {
    words_ = transposed(words_, layout_.k, layout_.row_words());
  }
  scales_.per_row = layout_.groups;
  read_scales(tensors);
  read_zeros(tensors);
  if (tensors.groups) read_order(*tensors.groups, source.matrix.format.num_orders > 0);
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
  row += layout_.skipped_rows;
  const int64_t row_words = layout_.row_words();
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

// Where columns have an order, a rank has all of them (WeightLayout); where they have none, the
// order is that of the file, whatever a rank has.
void IntegerRows::read_order(const CheckpointTensor& groups, bool is_ordered) {
  const auto group_of = read_integers_of<int32_t>(groups);
  const auto num_columns = std::ssize(group_of);
  std::vector<int64_t> next;  // the place of the next column of each group
  for (int64_t at = 0; at < num_columns; at += layout_.group_cols) next.push_back(at);
  const auto num_groups = std::ssize(next);
  order_.resize(group_of.size());
  for (size_t column = 0; column < group_of.size(); ++column) {
    const int32_t group = group_of[column];
    const bool is_group = group >= 0 && group < num_groups;
    int64_t* const place = is_group ? &next[static_cast<size_t>(group)] : nullptr;
    if (!is_group || *place == std::min((group + 1) * layout_.group_cols, num_columns)) {
      fail_tensor(groups,
                  fmt::format("puts column {} into group {}, but there are {} groups of {} columns",
                              column, group, num_groups, layout_.group_cols));
    }
    order_[static_cast<size_t>((*place)++)] = static_cast<int32_t>(column);
  }
  if (is_ordered) {
    scales_.order = order_;
    return;
  }
  if (!std::ranges::is_sorted(order_)) {
    fail_tensor(groups,
                "orders columns, but quantization_config of config.json does not say so "
                "(desc_act, actorder)");
  }
  order_.clear();
}

// Tiles of 16 rows, which share words of AWQ and GPTQ, by 64 columns, in a buffer: rows of `dst`
// lie at distances at which they would displace each other from the cache.
template <typename Number>
void IntegerRows::read_tiles(int64_t first, std::span<std::byte> dst, const Number& number) const {
  constexpr int64_t kRows = 16, kCols = 64;
  const int64_t num_rows = std::ssize(dst) / layout_.k;
  std::byte tile[kRows][kCols];
  for (int64_t row = 0; row < num_rows; row += kRows) {
    const int64_t rows = std::min(kRows, num_rows - row);
    for (int64_t begin = 0; begin < layout_.k; begin += kCols) {
      const int64_t cols = std::min(kCols, layout_.k - begin);
      for (int64_t i = 0; i < cols; ++i) {
        const int64_t column = order_.empty() ? begin + i : order_[static_cast<size_t>(begin + i)];
        for (int64_t r = 0; r < rows; ++r) {
          tile[r][i] = static_cast<std::byte>(number(first + row + r, column) & layout_.mask());
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(tile[r], cols, dst.data() + (row + r) * layout_.k + begin);
      }
    }
  }
}

template <int kBits>
void IntegerRows::read_numbers(int64_t first, std::span<std::byte> dst) const {
  constexpr uint32_t kPerWord = 32 / kBits;
  const uint32_t* const words = words_.data();
  const auto shift_of = [](int64_t place) {
    return static_cast<uint32_t>(place) % kPerWord * kBits;
  };
  const auto word_of = [](int64_t place) { return static_cast<uint32_t>(place) / kPerWord; };
  if (layout_.form == IntegerForm::kPackQuantized) {
    const int64_t row_words = word_of(layout_.k + kPerWord - 1);
    read_tiles(first, dst, [=](int64_t row, int64_t column) {
      return words[row * row_words + word_of(column)] >> shift_of(column);
    });
  } else if (layout_.form == IntegerForm::kAwq) {
    read_tiles(first + layout_.skipped_rows, dst, [=, k = layout_.k](int64_t row, int64_t column) {
      return words[word_of(row) * k + column] >> kAwqShifts[row % 8];
    });
  } else {
    read_tiles(first, dst, [=, n = layout_.n](int64_t row, int64_t column) {
      return words[word_of(column) * n + row] >> shift_of(column);
    });
  }
}

void IntegerRows::read(size_t offset, std::span<std::byte> dst) const noexcept {
  const int64_t first = static_cast<int64_t>(offset) / layout_.k;
  layout_.bits == 4 ? read_numbers<4>(first, dst) : read_numbers<8>(first, dst);
}

}  // namespace sluice
