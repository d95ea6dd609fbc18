// Runs a program built with ThreadSanitizer and collects its output.
//
// Used by the tests that plant races (tests/device/planted_race_test.cc) and leave out waits
// (tests/engine/offload/offload_waits_test.cc). Thread rule: main thread of the test.
#pragma once

#include <array>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace sluice::testing {

inline constexpr int kRaceExitCode = 66;

struct WatchedOutcome {
  int exit_code = -1;  // kRaceExitCode after a report; -1: killed by a signal
  std::string output;  // standard output and error

  bool says(const char* text) const { return output.find(text) != std::string::npos; }
};

// `command`: the program and its arguments, for the shell.
inline WatchedOutcome run_watched(const std::string& command) {
  const std::string line =
      "TSAN_OPTIONS=exitcode=" + std::to_string(kRaceExitCode) + " " + command + " 2>&1";
  WatchedOutcome outcome;
  FILE* pipe = popen(line.c_str(), "r");
  EXPECT_NE(pipe, nullptr) << command;
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> piece;
  while (const size_t size = fread(piece.data(), 1, piece.size(), pipe)) {
    outcome.output.append(piece.data(), size);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace sluice::testing
