// The arithmetic of sluice-lab overlap, on lists made by hand.
#include "lab/page_overlap.h"

#include <gtest/gtest.h>

namespace sluice::lab {

namespace {

using Shares = std::vector<double>;

TEST(PageOverlap, CountsWhatTheStepsBeforeHad) {
  PageOverlap overlap({});
  EXPECT_EQ(overlap.add_step({1, 2, 3, 4}).previous, 0) << "nothing came before";
  EXPECT_DOUBLE_EQ(overlap.add_step({3, 4, 5, 6}).previous, 0.5);
  const StepOverlap third = overlap.add_step({1, 4, 7, 8});
  EXPECT_DOUBLE_EQ(third.previous, 0.25) << "4";
  EXPECT_DOUBLE_EQ(third.last_4, 0.5) << "1 and 4";
  EXPECT_DOUBLE_EQ(third.last_16, 0.5);
}

TEST(PageOverlap, WindowsEndWhereTheySay) {
  PageOverlap overlap({});
  overlap.add_step({100});
  for (int32_t page = 1; page <= 3; ++page) overlap.add_step({page});
  EXPECT_EQ(overlap.add_step({100}).last_4, 1) << "four steps ago";
  for (int32_t page = 11; page <= 14; ++page) overlap.add_step({page});
  const StepOverlap five_ago = overlap.add_step({100});
  EXPECT_EQ(five_ago.last_4, 0);
  EXPECT_EQ(five_ago.last_16, 1);
  for (int32_t page = 21; page <= 36; ++page) overlap.add_step({page});
  EXPECT_EQ(overlap.add_step({100}).last_16, 0) << "seventeen steps ago";
}

// Three caches of 2, 4 and 6 pages. After two steps the pages by recency are 4 3 | 2 1:
// of a list the last page is the newest.
TEST(PageOverlap, CachesHoldTheMostRecentlyUsedPages) {
  PageOverlap overlap({2, 4, 6});
  EXPECT_EQ(overlap.add_step({1, 2}).caches, (Shares{0, 0, 0}));
  EXPECT_EQ(overlap.add_step({3, 4}).caches, (Shares{0, 0, 0}));
  EXPECT_EQ(overlap.add_step({1, 4}).caches, (Shares{0.5, 1, 1})) << "1 is the third newest";
  // 4 1 | 3 | 2, then 6 5 before them.
  EXPECT_EQ(overlap.add_step({5, 6}).caches, (Shares{0, 0, 0}));
  EXPECT_EQ(overlap.add_step({2, 3}).caches, (Shares{0, 0, 1})) << "fifth and sixth";
}

TEST(PageOverlap, ACacheOfOneListHoldsTheStepBefore) {
  PageOverlap overlap({3});
  for (int32_t step = 0; step < 50; ++step) {
    const int32_t first = step * step % 7;
    const StepOverlap shares = overlap.add_step({first, first + 1, first + 4});
    EXPECT_EQ(shares.caches[0], shares.previous) << "step " << step;
  }
}

TEST(PageOverlap, SummariesAreMeansAndTheLowTenth) {
  std::vector<StepOverlap> steps;
  for (int i = 20; i >= 1; --i) {
    steps.push_back(
        {.previous = i * 0.05, .last_4 = 0.5, .last_16 = 1, .caches = {0.25, i * 0.05}});
  }
  const OverlapSummary summary = summarize(steps);
  EXPECT_EQ(summary.num_steps, 20);
  EXPECT_DOUBLE_EQ(summary.mean.previous, 0.525);
  EXPECT_DOUBLE_EQ(summary.previous_p10, 0.15) << "2 of 20 have less";
  EXPECT_DOUBLE_EQ(summary.mean.last_4, 0.5);
  EXPECT_DOUBLE_EQ(summary.mean.last_16, 1);
  ASSERT_EQ(summary.mean.caches.size(), 2u);
  EXPECT_DOUBLE_EQ(summary.mean.caches[0], 0.25);
  EXPECT_DOUBLE_EQ(summary.mean.caches[1], 0.525);
}

}  // namespace
}  // namespace sluice::lab
