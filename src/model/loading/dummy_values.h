// Random values of LoadFormat::kDummy, for measurements without a model's files.
//
// Used by the loader of weights. Thread rule: host thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

 private:
  std::vector<BFloat16> drawn_;
};

// Such values as codes of a format with scales: one scale, by which the largest is that of e4m3, or
// of integers about the middle of their range.
class DummyCodes {
 public:
  explicit DummyCodes(WeightFormat format) : format_(format) {}

  std::vector<uint8_t> of(std::span<const BFloat16> values) const;
  // The scales of a matrix [num_rows, num_cols].
  ScaleRows scales(int64_t num_rows, int64_t num_cols) const;

 private:
  float middle() const;
  float scale() const;

  WeightFormat format_;
};

}  // namespace sluice
