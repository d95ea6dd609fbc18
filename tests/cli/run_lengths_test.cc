// The run length from which copies are chosen, for simulated measured rates.
#include "cli/bench/run_lengths.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

// Rates of copies against a kernel that always reaches 100.
std::vector<RunLength> lengths_of(const std::vector<std::pair<size_t, double>>& copies) {
  std::vector<RunLength> lengths;
  for (const auto& [run_bytes, rate] : copies) {
    lengths.push_back(
        {.run_bytes = run_bytes, .by_copies = {.median = rate}, .by_kernel = {.median = 100}});
  }
  return lengths;
}

TEST(RunLengthsTest, CopiesAreChosenFromWhereTheyAreNearlyAsFast) {
  EXPECT_EQ(choose_copy_run_bytes(lengths_of({{1, 30}, {2, 94.9}, {4, 95.1}, {8, 105}})), 4u);
}

TEST(RunLengthsTest, AnOutlierAmongShortRunsIsNotTrusted) {
  EXPECT_EQ(choose_copy_run_bytes(lengths_of({{1, 99}, {2, 60}, {4, 90}, {8, 105}})), 8u);
}

TEST(RunLengthsTest, CopiesThatAreAlwaysOrNeverAsFast) {
  EXPECT_EQ(choose_copy_run_bytes(lengths_of({{1, 99}, {2, 99}, {4, 99}})), 1u);
  EXPECT_EQ(choose_copy_run_bytes(lengths_of({{1, 9}, {2, 50}, {4, 90}})), 8u);
}

TEST(Spread, TheMedianOfTwoIsBetweenThem) {
  EXPECT_EQ(spread_of({4, 1}).median, 2.5);
  EXPECT_EQ(spread_of({4, 1, 9}).median, 4);
  EXPECT_EQ(spread_of({4, 1, 9, 6}).median, 5);
}

}  // namespace
}  // namespace sluice::cli
