// GgufRows: a matrix in blocks of GGUF, read as rows of one code a byte, and the values of its
// groups and blocks.
//
// The format of the weight may be wider than that of the tensor, whose codes and values it can hold
// (gguf/gguf_formats.h). Used by Weights. Thread rule: `read` from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/model_directory.h"
#include "model/loading/scale_rows.h"
#include "model/weight_layout.h"
#include "ops/matmul/matmul.h"

namespace sluice {

class GgufRows final : public WeightReader {
 public:
  // Reads all blocks of a source, whose matrix has a format of GGUF. Cost: memory of these blocks.
  // Errors: kModel naming the tensor for a scale that is not finite; those of ModelFile::read.
  GgufRows(const WeightSource& source, const CheckpointTensor& tensor);

  // Rows with their padding, in the order of the matrix.
  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  // Bytes of rows [num_rows, num_cols]. REQUIRES: whole rows.
  void read(size_t offset, std::span<std::byte> dst) const noexcept override;
  // Of all rows; moves them out.
  ScaleRows take_values() { return std::move(values_); }

 private:
  // The blocks of a row; null for padding.
  const std::byte* blocks_of(int64_t row) const;
  void read_values(const CheckpointTensor& tensor);

  const GgufType& type_;
  WeightFormat format_;
  int64_t num_cols_ = 0;
  std::vector<std::byte> blocks_;
  std::vector<int32_t> rows_;  // of the source, of each row of the matrix; -1: padding
  ScaleRows values_;
};

}  // namespace sluice
