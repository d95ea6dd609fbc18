// Forced acceptance has the expected tokens of a step after few steps, wherever they begin.
#include "lab/speculative/forced_pattern.h"

#include <cmath>

#include <gtest/gtest.h>

#include "lab/speculative/cost_model.h"

namespace sluice::lab {

namespace {

// Tokens of a step in the mean, as the engine commits them: up to the first rejection, whose token
// the verifier gives, or all drafts and one token more.
double tokens_per_step(ForcedPattern& pattern, int64_t position, int num_drafts, int num_steps) {
  const int64_t first = position;
  for (int step = 0; step < num_steps; ++step) {
    int accepted = 0;
    while (accepted < num_drafts && pattern.accepts(position + accepted)) ++accepted;
    position += accepted + 1;
  }
  return static_cast<double>(position - first) / num_steps;
}

TEST(ForcedPattern, FewStepsHaveNearlyTheExpectedTokens) {
  for (const double rate : {0.5, 0.8, 0.9, 0.95}) {
    for (const int num_drafts : {1, 4, 16, 32}) {
      for (const int64_t seed : {0, 1, 2, 77}) {
        for (const int64_t position : {0, 1000, 131072}) {
          ForcedPattern pattern(rate, seed);
          const double expected = expected_tokens(rate, num_drafts);
          EXPECT_NEAR(tokens_per_step(pattern, position, num_drafts, 60), expected, 0.1 * expected)
              << rate << ", " << num_drafts << ", " << seed << ", " << position;
          ForcedPattern longer(rate, seed);
          EXPECT_NEAR(tokens_per_step(longer, position, num_drafts, 4000), expected,
                      0.01 * expected)
              << rate << ", " << num_drafts << ", " << seed << ", " << position;
        }
      }
    }
  }
}

TEST(ForcedPattern, AllAndNoneAreExact) {
  ForcedPattern all(1, 3), none(0, 3);
  for (int64_t position = 0; position < 1000; ++position) {
    EXPECT_TRUE(all.accepts(position));
    EXPECT_FALSE(none.accepts(position));
  }
}

TEST(ForcedPattern, TheOrderOfQuestionsDoesNotMatterAndSeedsDiffer) {
  ForcedPattern forward(0.8, 5), backward(0.8, 5), other(0.8, 6);
  int num_different = 0;
  backward.accepts(500);
  for (int64_t position = 500; position >= 0; --position) {
    const bool accepted = backward.accepts(position);
    EXPECT_EQ(forward.accepts(position), accepted);
    num_different += other.accepts(position) == accepted ? 0 : 1;
  }
  EXPECT_GT(num_different, 50);
}

}  // namespace
}  // namespace sluice::lab
