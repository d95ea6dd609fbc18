// Blocks are read at once, in the order of the checkpoint's rows; codes are taken out of them on
// the threads that pack.
#include "model/loading/gguf_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

// The row of a source that each row of its matrix is; -1 for padding.
std::vector<int32_t> rows_of(const WeightSource& source) {
  std::vector<int32_t> rows(static_cast<size_t>(source.shape[0]));
  std::iota(rows.begin(), rows.end(), 1);
  if (source.pads()) {
    const auto padded =
        pad_heads(source.padding, std::as_bytes(std::span(rows)), sizeof(rows.front()));
    rows.resize(padded.size() / sizeof(rows.front()));
    std::memcpy(rows.data(), padded.data(), padded.size());
  }
  for (int32_t& row : rows) --row;
  return rows;
}

// Of f16.
bool is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

}  // namespace

GgufRows::GgufRows(const WeightSource& source, const CheckpointTensor& tensor)
    : type_(*tensor.storage->type),
      format_(source.matrix.format),
      num_cols_(source.shape[1]),
      blocks_(tensor.read_blocks()),
      rows_(rows_of(source)) {
  SLUICE_CHECK(source.heads != HeadAxis::kColumns || !source.pads(), "padded columns of {}",
               source.name);
  read_values(tensor);
}

const std::byte* GgufRows::blocks_of(int64_t row) const {
  const int32_t in_source = rows_[static_cast<size_t>(row)];
  if (in_source < 0) return nullptr;
  return blocks_.data() +
         static_cast<size_t>(in_source * (num_cols_ / type_.block_elements)) * type_.block_bytes;
}

// Of every block of every row, on one thread: some 50 ns a block, in all a second for 8 G numbers.
// A group or block of the matrix has the values of that of the tensor which it is part of.
void GgufRows::read_values(const CheckpointTensor& tensor) {
  const auto num_groups = static_cast<size_t>(num_rows() * (num_cols_ / format_.group_cols));
  const auto num_blocks = static_cast<size_t>(num_rows() * (num_cols_ / format_.block_cols));
  values_.factors.resize(num_groups);
  values_.block_scales.resize(num_blocks);
  values_.minima.resize(format_.has_minima ? num_groups : 0);
  values_.block_min_scales.resize(format_.has_minima ? num_blocks : 0);
  size_t group = 0;
  size_t block = 0;
  for (int64_t row = 0; row < num_rows(); ++row) {
    const std::byte* from = blocks_of(row);
    for (int64_t column = 0; column < num_cols_; column += type_.block_elements) {
      GgufBlockValues values;
      if (from != nullptr) type_.parts->values(from, values);
      if (!is_finite(values.scale) || !is_finite(values.min_scale)) {
        throw Error(ErrorCode::kModel,
                    fmt::format("tensor \"{}\" has a scale that is not finite; fetch the file "
                                "again",
                                tensor.name),
                    tensor.file->path().string());
      }
      for (int64_t i = 0; i < type_.block_elements; i += format_.group_cols, ++group) {
        values_.factors[group] = static_cast<uint8_t>(values.factors[i / kGgufGroup]);
        if (format_.has_minima) values_.minima[group] = values.minima[i / kGgufGroup];
      }
      for (int64_t i = 0; i < type_.block_elements; i += format_.block_cols, ++block) {
        values_.block_scales[block] = Float16{values.scale};
        if (format_.has_minima) values_.block_min_scales[block] = Float16{values.min_scale};
      }
      if (from != nullptr) from += type_.block_bytes;
    }
  }
}

// Padding has codes of 0, whose scale and minimum are 0, too.
void GgufRows::read(size_t offset, std::span<std::byte> dst) const noexcept {
  int64_t row = static_cast<int64_t>(offset) / num_cols_;
  for (size_t done = 0; done < dst.size(); done += static_cast<size_t>(num_cols_), ++row) {
    auto* to = reinterpret_cast<int8_t*>(dst.data() + done);
    const std::byte* from = blocks_of(row);
    if (from == nullptr) {
      std::fill_n(to, num_cols_, int8_t{0});
      continue;
    }
    for (int64_t column = 0; column < num_cols_; column += type_.block_elements) {
      type_.parts->codes(from, to + column);
      from += type_.block_bytes;
    }
  }
}

}  // namespace sluice
