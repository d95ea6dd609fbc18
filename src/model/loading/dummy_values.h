// Random values of LoadFormat::kDummy, for measurements without a model's files.
//
// Used by the loader of weights. Thread rule: host thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "model/loading/scale_rows.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {

// What is drawn for a tensor follows from its name, so that ranks which read other parts of it, in
// other calls, have those of the same values.
uint64_t dummy_state(uint64_t seed, std::string_view tensor);

// `count` uniform values with the given mean and standard deviation 0.02, the usual initialisation
// of transformers. It keeps the activations of random models finite. Advances `state`.
std::vector<BFloat16> draw_uniform(size_t count, float mean, uint64_t& state);

// Factor of the embeddings of a mixture of experts, whose standard deviation is then about 1. With
// .02, sums that layers add and that all tokens share outweigh them, and routers choose the same
// experts for every token. Not of a tied head, which would choose the token that was read.
inline constexpr float kSpreadScale = 64;

// Random values of the first `count` rows of a matrix; those after them are the same.
struct DummyRows {
  std::vector<BFloat16> values;
  std::vector<uint8_t> codes;  // in place of them in a format with scales
  int64_t count = 0;
  int64_t num_columns = 0;

  // Multiplies the values. REQUIRES: no codes.
  void scale(float factor);
  DType dtype() const { return codes.empty() ? DType::kBF16 : DType::kU8; }
  // Rows [row_begin, row_begin + num_rows) of some columns. REQUIRES: within `count` rows.
  std::vector<std::byte> cut(int64_t row_begin, int64_t num_rows, int64_t col_begin,
                             int64_t num_cols) const;
};

// Values of matrices, drawn once and repeated from another place for each: timing does not depend
// on values, and to draw those of 18,432 matrices of experts takes a minute. Their number is prime,
// so that rows of one matrix differ.
class DummyNumbers {
 public:
  explicit DummyNumbers(uint64_t& state);

  // Rows of a matrix of that shape; with a format with scales as codes, whose scales dummy_scales
  // has.
  DummyRows next_rows(WeightFormat format, std::span<const int64_t> shape, int64_t num_rows,
                      uint64_t& state);

 private:
  std::vector<BFloat16> drawn_;
  std::map<WeightNumbers, std::vector<uint8_t>> coded_;  // those of `drawn_`, made when asked for
};

// The scales of a matrix of such codes, [num_rows, num_cols]: one number, by which the largest code
// is that of e4m3, or of integers about the middle of their range.
ScaleRows dummy_scales(WeightFormat format, int64_t num_rows, int64_t num_cols);

}  // namespace sluice
