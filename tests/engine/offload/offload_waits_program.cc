// Runs offload_waits_run.h as a program. offload_waits_test.cc starts it under ThreadSanitizer.
//
// Exit code 0: the bits are those of a resident run; 1: they are not. After a data race the code is
// the one set in TSAN_OPTIONS.
//
//   offload_waits_program MODE               prints the number of waits of each kind
//   offload_waits_program MODE KIND INDEX    leaves that one out; KIND is a number
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "engine/offload/offload_waits_run.h"
#include "support/hooked_device.h"

namespace sluice {
namespace {

int run(const std::string& mode, SkippedWait skipped) {
  const testing::WaitsRun outcome = testing::run_without(
      mode, skipped, testing::make_hooked_device("cpu", {.num_threads = 1}, {.schedule_seed = 7}));
  if (skipped.index < 0) {
    for (const int64_t count : outcome.num_waits) std::printf("%ld\n", count);
  }
  testing::expect_all_same(outcome.outputs, testing::run_resident(mode), mode);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::SkippedWait skipped;
  if (argc == 4) {
    skipped = {.kind = static_cast<sluice::WaitKind>(std::atoi(argv[2])),
               .index = std::atol(argv[3])};
  }
  return argc == 2 || argc == 4 ? sluice::run(argv[1], skipped) : 2;
}
