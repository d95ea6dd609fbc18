// The cost model of speculation against the process that it describes: drafts are accepted up to
// the first that is not.
#include "lab/speculative/cost_model.h"

#include <random>

#include <gtest/gtest.h>

namespace sluice::lab {

namespace {

// Tokens of a step, by the sum over how many drafts are accepted: exactly i of them, or all k.
double by_cases(double acceptance, int num_drafts) {
  double probability = 1, mean = 0;
  for (int accepted = 0; accepted < num_drafts; ++accepted) {
    mean += probability * (1 - acceptance) * (accepted + 1);
    probability *= acceptance;
  }
  return mean + probability * (num_drafts + 1);
}

TEST(CostModel, TokensOfAStepAreTheMeanOfAllCases) {
  for (const double acceptance : {0.0, 0.2, 0.8, 0.95, 0.999, 1.0}) {
    for (const int num_drafts : {0, 1, 4, 16, 64}) {
      EXPECT_NEAR(expected_tokens(acceptance, num_drafts), by_cases(acceptance, num_drafts), 1e-9)
          << acceptance << ", " << num_drafts;
    }
  }
}

TEST(CostModel, ADrawnSeriesHasTheExpectedTokens) {
  std::mt19937 generator(3);
  std::bernoulli_distribution accepts(0.9);
  constexpr int kSteps = 200000, kDrafts = 8;
  int64_t num_tokens = 0;
  for (int step = 0; step < kSteps; ++step) {
    int accepted = 0;
    while (accepted < kDrafts && accepts(generator)) ++accepted;
    num_tokens += accepted + 1;
  }
  // A step has at most 9 tokens, so the mean of so many is off by less than 0.05 (7 deviations).
  EXPECT_NEAR(static_cast<double>(num_tokens) / kSteps, expected_tokens(0.9, kDrafts), 0.05);
}

TEST(CostModel, TheFitIsTheInverse) {
  for (const double acceptance : {0.01, 0.5, 0.9, 0.99}) {
    for (const double num_drafts : {1.0, 3.5, 32.0}) {
      EXPECT_NEAR(fitted_acceptance(expected_tokens(acceptance, num_drafts), num_drafts),
                  acceptance, 1e-9);
    }
  }
  EXPECT_EQ(fitted_acceptance(1, 8), 0);
  EXPECT_EQ(fitted_acceptance(9, 8), 1);
  EXPECT_EQ(fitted_acceptance(1.5, 0), 1) << "no draft, more than a token: rounding of a run's end";
}

// 307 ms for a pass that streams 128K tokens of an 8B shape over a link, 8 ms for a draft.
TEST(CostModel, TheRateIsTokensOverTheTimeOfAStep) {
  const StepTimes times{.verify_seconds = 0.307, .draft_seconds = 0.008};
  EXPECT_NEAR(predicted_rate(0.9, 16, times), 8.33 / 0.435, 0.02);
  EXPECT_NEAR(predicted_rate(0.95, 32, times), 16.3 / 0.563, 0.05);
  EXPECT_DOUBLE_EQ(predicted_rate(0, 0, times), 1 / 0.307);
}

}  // namespace
}  // namespace sluice::lab
