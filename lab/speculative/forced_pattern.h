// ForcedPattern: which draft tokens a benchmark accepts, so that few steps have nearly the expected
// tokens.
//
// Drawn at random, 30 steps of 16 drafts at an acceptance of 0.9 have a mean that is off by 13 % as
// a rule; a comparison with the cost model would need thousands. Here the distances between
// rejections are quantiles of their distribution in an even order. Used by sluice-lab speculative.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::lab {

class ForcedPattern {
 public:
  // Accepts each token with probability `rate`, 0 to 1, in the mean over positions. Patterns of
  // different `seed` differ.
  ForcedPattern(double rate, int64_t seed);

  // Whether the draft token at `position` is accepted; depends on the position alone.
  bool accepts(int64_t position);

 private:
  double rate_;
  double next_quantile_;
  std::vector<int64_t> rejections_;  // ascending, as far as was asked
};

}  // namespace sluice::lab
