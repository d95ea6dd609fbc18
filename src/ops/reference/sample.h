// Sampling by brute force in double precision, written from the contract. Used by tests only.
// Thread rule: pure functions over host-readable memory.
#pragma once

#include <vector>

#include "ops/sample.h"

namespace sluice::reference {

// The tokens of one row that the filters keep, in the order in which they keep them, and their
// probabilities (they sum to 1). Greedy rows keep one token.
struct KeptTokens {
  std::vector<int32_t> ids;
  std::vector<double> probabilities;
  // Distance of the nearest token to a filter's border: for min-p in units of ln(weight), for top-p
  // in probability mass. Below f32 rounding a backend may keep another set.
  double margin = 1.0;
};

// Applies adjustments, suppression, temperature, min-p, top-k and top-p to one row, in this order.
KeptTokens kept_tokens(const SampleArgs& args, int64_t row);

// The token of each row, [m]: the given one, or the argmax of ln(probability) + Gumbel noise over
// the kept tokens. An id is exact as a double.
std::vector<double> sample(const SampleArgs& args);

// log-softmax of the raw logits of one row, [vocab]: adjustments, suppression and filters do not
// change it.
std::vector<double> log_softmax(const SampleArgs& args, int64_t row);

}  // namespace sluice::reference
