// Random values of LoadFormat::kDummy, for measurements without a model's files.
//
// Used by the loader of weights. Thread rule: host thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/dtype.h"
#include "model/loading/scale_rows.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {

// `count` uniform values with the given mean and standard deviation 0.02, the usual initialisation
// of transformers. It keeps the activations of random models finite. Advances `state`.
std::vector<BFloat16> draw_uniform(size_t count, float mean, uint64_t& state);

// Values of matrices, drawn once and repeated from another place for each: timing does not depend
// on values, and to draw those of 18,432 matrices of experts takes a minute. Their number is prime,
// so that rows of one matrix differ.
class DummyNumbers {
 public:
  explicit DummyNumbers(uint64_t& state);

  std::vector<BFloat16> next(size_t count, uint64_t& state) const;
  // Such values as codes of a format with scales, which dummy_scales has.
  std::vector<uint8_t> next_codes(WeightFormat format, size_t count, uint64_t& state);

 private:
  std::vector<BFloat16> drawn_;
  std::map<WeightNumbers, std::vector<uint8_t>> coded_;  // those of `drawn_`, made when asked for
};

// The scales of a matrix of such codes, [num_rows, num_cols]: one number, by which the largest code
// is that of e4m3, or of integers about the middle of their range.
ScaleRows dummy_scales(WeightFormat format, int64_t num_rows, int64_t num_cols);

}  // namespace sluice
