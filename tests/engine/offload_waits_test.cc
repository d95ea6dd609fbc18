// Every wait of the offload engine is needed, or it is known why not.
//
// Built in the tsan preset only: leaves out one wait after the other in a run of its own
// (offload_waits_program.cc) and expects that ThreadSanitizer reports a race, that the bits differ,
// or that the run dies. Which index is which follows from the jobs of the program; the first test
// fails when that changes. SLUICE_EVERY_WAIT=1 takes every wait of the ranges below, not samples.
//
// Waits that nobody misses are redundant because the order is there already:
//   drained     the first load of each slot in a job: the step before ended with a host wait for
//               compute, the slot's last reader, and did not expect this one. Of gathers also the
//               first two of a layer: what chose their pages came behind the slots' last readers;
//               and compute's, unless the slot's last load was for nothing
//   on host     blocks that were loaded before since they were written (compute has seen that load
//               end, and the host has waited for compute); in a prefill also those loads whose slot
//               waits for a "drained" that compute recorded after it waited for "stage left"
//   stage left  nothing has left yet, or decode has loaded what left since
//   written     the flush of a tail: it follows the host wait that ends a decode step
//   tail left   nothing has left yet, or what left was loaded since by the sequence that goes on;
//               where decode gathers, compute waits for what has left by itself
//   selected    the third gather of a layer and later ones: a slot that is used again is drained
//               behind the lists
// They stay: each costs one queue entry, and the order that makes them redundant is the runner's
// (one host wait per step), not the offload engine's.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "kv/wait_gate.h"

namespace sluice {
namespace {

constexpr int kRaceExitCode = 66;

struct Outcome {
  int exit_code;  // -1: killed by a signal
  std::string output;
};

Outcome run_program(const std::string& arguments) {
  const std::string command = "TSAN_OPTIONS=exitcode=" + std::to_string(kRaceExitCode) + " " +
                              SLUICE_WAITS_PROGRAM + " " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Outcome outcome{};
  std::array<char, 4096> piece;
  while (size_t size = fread(piece.data(), 1, piece.size(), pipe)) {
    outcome.output.append(piece.data(), size);
  }
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// Waits [first, last] of one kind, all of which must be caught.
struct Needed {
  WaitKind kind;
  int64_t first;
  int64_t last;
};

void expect_all_caught(const std::string& mode, const std::vector<Needed>& ranges,
                       int num_samples) {
  if (std::getenv("SLUICE_EVERY_WAIT") != nullptr) num_samples = 1 << 20;
  for (const Needed& range : ranges) {
    const int64_t size = range.last - range.first + 1;
    const int64_t count = std::min<int64_t>(size, num_samples);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = range.first + (count == 1 ? 0 : i * (size - 1) / (count - 1));
      const std::string what =
          mode + " " + std::to_string(static_cast<int>(range.kind)) + " " + std::to_string(index);
      const Outcome outcome = run_program(what);
      EXPECT_NE(outcome.exit_code, 0) << "nobody missed wait " << what;
      EXPECT_NE(outcome.output.find("data race"), std::string::npos) << what << outcome.output;
    }
  }
}

// Nothing is reported when all waits are there, and the ranges below mean what they say.
TEST(OffloadWaits, TheCompleteEngineIsCleanAndMakesTheseWaits) {
  const std::pair<const char*, const char*> modes[] = {
      {"chunked", "282\n284\n284\n26\n21\n10\n2\n0\n"},
      {"layerwise", "254\n256\n256\n14\n15\n10\n2\n0\n"},
      {"gather", "368\n368\n107\n26\n21\n10\n0\n312\n"},
      {"replay", "16\n92\n41\n4\n7\n4\n2\n16\n"}};
  for (const auto& [mode, num_waits] : modes) {
    const Outcome outcome = run_program(mode);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output, num_waits) << mode;
  }
}

// Loads of the chunked run: 0-3 second chunk, 4-11 third, 12-201 19 decode steps of 10 (a tail is
// flushed before 112), 202-233 and 234-265 two short jobs, 266-269 and 270-273 two prompts, 274-281
// the job that stops early (two of its loads are dropped), 280-283 the last prompt.
TEST(OffloadWaits, EveryNeededOneOfChunkedIsMissed) {
  expect_all_caught("chunked", {{WaitKind::kFilled, 0, 281},    {WaitKind::kDrained, 2, 201},
                                {WaitKind::kDrained, 204, 233}, {WaitKind::kDrained, 236, 265},
                                {WaitKind::kDrained, 268, 269}, {WaitKind::kDrained, 272, 273},
                                {WaitKind::kDrained, 276, 279}, {WaitKind::kDrained, 282, 283},
                                {WaitKind::kOnHost, 0, 3},      {WaitKind::kOnHost, 16, 16},
                                {WaitKind::kOnHost, 21, 21},    {WaitKind::kOnHost, 116, 116},
                                {WaitKind::kOnHost, 202, 203},  {WaitKind::kOnHost, 234, 235},
                                {WaitKind::kOnHost, 266, 277},  {WaitKind::kOnHost, 280, 283},
                                {WaitKind::kStageLeft, 2, 5},   {WaitKind::kStageLeft, 12, 17},
                                {WaitKind::kStageLeft, 20, 21}, {WaitKind::kStageLeft, 24, 25},
                                {WaitKind::kWritten, 0, 5},     {WaitKind::kWritten, 11, 20},
                                {WaitKind::kTailLeft, 5, 5},    {WaitKind::kUnused, 0, 1}},
                    2);
}

// Loads of the layer-wise run: 0-189 19 decode steps of 10 (a tail is flushed before 100), 190-221
// and 222-253 the short jobs, 254-255 those that were meant for the job that stopped early.
TEST(OffloadWaits, EveryNeededOneOfLayerwiseIsMissed) {
  expect_all_caught("layerwise",
                    {{WaitKind::kFilled, 0, 253},
                     {WaitKind::kDrained, 2, 189},
                     {WaitKind::kDrained, 192, 221},
                     {WaitKind::kDrained, 224, 253},
                     {WaitKind::kOnHost, 0, 1},
                     {WaitKind::kOnHost, 5, 6},
                     {WaitKind::kOnHost, 104, 104},
                     {WaitKind::kOnHost, 190, 191},
                     {WaitKind::kOnHost, 222, 223},
                     {WaitKind::kOnHost, 254, 255},
                     {WaitKind::kStageLeft, 8, 13},
                     {WaitKind::kWritten, 0, 1},
                     {WaitKind::kWritten, 7, 14},
                     {WaitKind::kTailLeft, 5, 5},
                     {WaitKind::kUnused, 0, 1}},
                    2);
}

// Loads of the run that gathers: 0-23 history of the chunks, 24-175 19 decode steps with 4 gathers
// a layer, 176-255 and 256-335 the short jobs with one gather a layer, and two from the step after
// their tail was flushed on, 336-367 history of the last prompts and the job between them. Of a
// decode step the first two "drained" are compute's, and there is one "on host": 24-42 of the first
// job, 43-58 and 59-74 of the short ones, 75-106 of the last prompts.
TEST(OffloadWaits, EveryNeededOneOfGathersIsMissed) {
  expect_all_caught("gather", {{WaitKind::kFilled, 0, 367},     {WaitKind::kDrained, 2, 23},
                               {WaitKind::kDrained, 26, 26},    {WaitKind::kDrained, 102, 102},
                               {WaitKind::kDrained, 174, 174},  {WaitKind::kDrained, 338, 343},
                               {WaitKind::kDrained, 346, 351},  {WaitKind::kDrained, 354, 359},
                               {WaitKind::kDrained, 362, 367},  {WaitKind::kOnHost, 0, 1},
                               {WaitKind::kOnHost, 4, 5},       {WaitKind::kOnHost, 43, 43},
                               {WaitKind::kOnHost, 59, 59},     {WaitKind::kOnHost, 75, 76},
                               {WaitKind::kOnHost, 103, 104},   {WaitKind::kStageLeft, 2, 5},
                               {WaitKind::kStageLeft, 12, 17},  {WaitKind::kStageLeft, 20, 21},
                               {WaitKind::kStageLeft, 24, 25},  {WaitKind::kWritten, 0, 5},
                               {WaitKind::kWritten, 11, 20},    {WaitKind::kSelected, 0, 1},
                               {WaitKind::kSelected, 148, 149}, {WaitKind::kSelected, 152, 311}},
                    2);
}

// Waits of the run that is replayed: the first decode step has the eight loads of two layers and
// runs as it is (8 "drained", the first two of them compute's), the second is recorded (again 8),
// later ones wait for two slots and for one write-back. Behind the eleventh come the visitor's
// loads, "drained" 34-35 and "on host" 11-12, which nobody reads: compute's next, 36-37, is for
// them. Tails were flushed before the fifth decode step and every sixteenth from there.
TEST(OffloadWaits, EveryNeededOneOfReplaysIsMissed) {
  expect_all_caught("replay",
                    {{WaitKind::kFilled, 0, 7},
                     {WaitKind::kDrained, 10, 10},
                     {WaitKind::kDrained, 14, 14},
                     {WaitKind::kDrained, 36, 37},
                     {WaitKind::kOnHost, 4, 4},
                     {WaitKind::kOnHost, 11, 12},
                     {WaitKind::kOnHost, 22, 22},
                     {WaitKind::kOnHost, 38, 38},
                     {WaitKind::kUnused, 0, 1},
                     {WaitKind::kSelected, 0, 1},
                     {WaitKind::kSelected, 4, 5}},
                    2);
}

}  // namespace
}  // namespace sluice
