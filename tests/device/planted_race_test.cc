// The planted races: a ring with a forgotten wait must be found by ThreadSanitizer, every time.
//
// Built in the tsan preset only. If these fail, some change lets information flow back from a
// stream's worker (a mutex, a shared counter, a shared pool), and the race tests of the whole
// project have gone blind.
#include <string>

#include <gtest/gtest.h>

#include "support/watched_program.h"

namespace sluice {
namespace {

constexpr int kNumRuns = 10;
testing::WatchedOutcome run_ring_program(const std::string& arguments) {
  return testing::run_watched(SLUICE_RING_PROGRAM " " + arguments);
}

void expect_found_every_time(const std::string& arguments, const char* other_side = "attend") {
  for (int i = 0; i < kNumRuns; ++i) {
    const testing::WatchedOutcome outcome = run_ring_program(arguments);
    EXPECT_EQ(outcome.exit_code, testing::kRaceExitCode) << "run " << i << "\n" << outcome.output;
    // The report must be about the slot: the copy on one side, the reader on the other.
    for (const char* word : {"data race", "run_copy", other_side, "the sum is"}) {
      EXPECT_TRUE(outcome.says(word)) << word << "\n" << outcome.output;
    }
  }
}

void expect_clean_every_time(const std::string& arguments) {
  for (int i = 0; i < kNumRuns; ++i) {
    const testing::WatchedOutcome outcome = run_ring_program(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << "run " << i << "\n" << outcome.output;
  }
}

TEST(PlantedRace, AForgottenFilledWaitIsFound) { expect_found_every_time("no_filled fast"); }
TEST(PlantedRace, AForgottenDrainedWaitIsFound) { expect_found_every_time("no_drained fast"); }

// Here everything happens in the right order by luck; the results are right.
TEST(PlantedRace, AForgottenFilledWaitIsFoundThoughNothingGoesWrong) {
  expect_found_every_time("no_filled slow");
}
TEST(PlantedRace, AForgottenDrainedWaitIsFoundThoughNothingGoesWrong) {
  expect_found_every_time("no_drained slow");
}

// Events use their cells again; a used cell must not order its old users before its new ones.
TEST(PlantedRace, AnEventDoesNotInheritTheOrderOfAnotherOne) {
  expect_found_every_time("reused_event fast");
}

// The reader of a graph does not wait for what another stream of the capture brings.
TEST(PlantedRace, AForgottenWaitInsideAGraphIsFound) {
  expect_found_every_time("graph_no_filled fast");
}
// A stream that took part in a capture is not in order with the launches: neither with the reader
// nor with the copy that it was itself given then.
TEST(PlantedRace, AForgottenWaitBesideAGraphIsFound) {
  expect_found_every_time("graph_overtaken fast", "run_branch");
}

TEST(PlantedRace, TheCompleteRingIsClean) {
  expect_clean_every_time("graph fast");
  expect_clean_every_time("complete fast");
  expect_clean_every_time("complete slow");
}

}  // namespace
}  // namespace sluice
