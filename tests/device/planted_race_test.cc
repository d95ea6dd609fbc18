// Planted races: ThreadSanitizer must report a ring with a forgotten wait, every time.
//
// Built in the tsan preset only. A failure means that some change lets information flow back from a
// stream's worker (a mutex, a shared counter, a shared pool). ThreadSanitizer then sees an order
// that the device does not promise, and no race test of the project finds missing waits.
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

// The host pauses, so the order and the results are right by chance; only the wait is missing.
TEST(PlantedRace, AForgottenFilledWaitIsFoundThoughNothingGoesWrong) {
  expect_found_every_time("no_filled slow");
}
TEST(PlantedRace, AForgottenDrainedWaitIsFoundThoughNothingGoesWrong) {
  expect_found_every_time("no_drained slow");
}

// Events reuse their cells; a reused cell must not order its former users before its new ones.
TEST(PlantedRace, AnEventDoesNotInheritTheOrderOfAnotherOne) {
  expect_found_every_time("reused_event fast");
}

// The reader in a graph does not wait for the copy of another captured stream.
TEST(PlantedRace, AForgottenWaitInsideAGraphIsFound) {
  expect_found_every_time("graph_no_filled fast");
}
// A stream that took part in a capture is not ordered with the launches: neither with the reader
// nor with its own captured copy.
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
