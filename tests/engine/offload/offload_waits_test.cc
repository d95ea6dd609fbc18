// Every wait of the offload engine and of the ring of experts is needed, or listed below as
// redundant.
//
// Built in the tsan preset only. Leaves out one wait per run (offload_waits_program.cc) and expects
// a race report of ThreadSanitizer, or an error from the NaN in a freed slot. The indices of waits
// follow from the program's jobs; the first test fails when they change. SLUICE_EVERY_WAIT=1 tests
// every wait of the ranges below instead of the first of each.
//
// Waits whose omission is not detected are redundant, because something else gives the order:
//   drained     the first load of each slot in a job, and of experts in the engine, unless it was
//   enqueued early: the step before
//               it ended with a host wait for compute, the slot's last reader. For gathers also the
//               first two of a layer, whose pages compute selected after the slots' last readers;
//               and compute's own waits, unless the slot's last load was dropped unread
//   on host     blocks that were already loaded after they were written (compute has waited for
//               that load, and the host for compute); in prefill also loads whose slot waits for a
//               "drained" that compute recorded after it had waited for "stage left"
//   stage left  the first use of a stage, or decode has loaded the blocks since they left
//   written     the flush of a tail, since it follows the host wait that ends a decode step
//   tail left   the first use of a tail, or its sequence has loaded the block since it left; for
//               decode that gathers, another wait of compute orders the two
//   selected    the third gather of a layer and later ones: they wait for a "drained" that compute
//               recorded after the lists
// These waits are kept: each costs one queue entry, and they are redundant only because of the
// runner (one host wait per step), which the offload engine does not depend on.
#include <cstdlib>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine/offload/offload_waits_needed.h"
#include "support/watched_program.h"

namespace sluice {
namespace {

// Not with AMX, whose loads of tiles ThreadSanitizer does not see.
testing::WatchedOutcome run_program(const std::string& arguments) {
  return testing::run_watched("SLUICE_CPU_ISA=avx2 " SLUICE_WAITS_PROGRAM " " + arguments);
}

// The error after compute has read a freed slot's NaN. It may end the run before the late write
// that ThreadSanitizer would report.
constexpr const char* kPoisonReached = "of the logits has NaN";

bool is_caught(const testing::WatchedOutcome& outcome) {
  return outcome.exit_code != 0 && (outcome.says("data race") || outcome.says(kPoisonReached));
}

// A race is reported unless other synchronisation happens to order the two accesses, which two of a
// thousand runs on a busy machine saw. So a wait has three chances to be missed.
testing::WatchedOutcome run_until_caught(const std::string& arguments) {
  testing::WatchedOutcome outcome = run_program(arguments);
  for (int again = 0; again < 2 && !is_caught(outcome); ++again) outcome = run_program(arguments);
  return outcome;
}

void expect_all_caught(const std::string& mode) {
  const bool every = std::getenv("SLUICE_EVERY_WAIT") != nullptr;
  for (const testing::NeededWaits& range : testing::needed_waits(mode)) {
    const int64_t last_tried = every ? range.last : range.first;
    for (int64_t index = range.first; index <= last_tried; ++index) {
      const std::string what =
          mode + " " + std::to_string(static_cast<int>(range.kind)) + " " + std::to_string(index);
      const testing::WatchedOutcome outcome = run_until_caught(what);
      EXPECT_NE(outcome.exit_code, 0) << "without an error: wait " << what;
      EXPECT_TRUE(is_caught(outcome)) << what << outcome.output;
    }
  }
}

// With all waits nothing is reported, and the numbers of waits are those that the ranges assume.
TEST(OffloadWaits, TheCompleteEngineIsCleanAndMakesTheseWaits) {
  const std::pair<const char*, const char*> modes[] = {
      {"chunked", "282\n284\n284\n26\n21\n10\n2\n0\n"},
      {"layerwise", "254\n256\n256\n14\n15\n10\n2\n0\n"},
      {"gather", "368\n368\n107\n26\n21\n10\n0\n312\n"},
      {"replay", "16\n92\n41\n4\n7\n4\n2\n16\n"},
      {"hot", "16\n102\n51\n10\n9\n5\n0\n0\n"},
      {"speculative", "280\n280\n127\n10\n9\n5\n0\n180\n"},
      {"scored", "46\n46\n46\n14\n10\n2\n0\n0\n"},
      {"experts", "24\n26\n0\n0\n0\n0\n0\n0\n"}};
  for (const auto& [mode, num_waits] : modes) {
    const testing::WatchedOutcome outcome = run_program(mode);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output, num_waits) << mode;
  }
}

TEST(OffloadWaits, EveryNeededOneOfChunkedIsMissed) { expect_all_caught("chunked"); }

TEST(OffloadWaits, EveryNeededOneOfLayerwiseIsMissed) { expect_all_caught("layerwise"); }

TEST(OffloadWaits, EveryNeededOneOfGathersIsMissed) { expect_all_caught("gather"); }

TEST(OffloadWaits, EveryNeededOneOfReplaysIsMissed) { expect_all_caught("replay"); }

TEST(OffloadWaits, EveryNeededOneOfHotPagesIsMissed) { expect_all_caught("hot"); }

TEST(OffloadWaits, NeededOnesOfSpeculationAreMissed) { expect_all_caught("speculative"); }

TEST(OffloadWaits, EveryNeededOneOfScoredKeysIsMissed) { expect_all_caught("scored"); }

TEST(OffloadWaits, EveryNeededOneOfExpertsIsMissed) { expect_all_caught("experts"); }

}  // namespace
}  // namespace sluice
