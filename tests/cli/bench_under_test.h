// Runs bench commands on the bundled model, for tests that read their JSON.
//
// Thread rule: main thread of the test.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/program_under_test.h"
#include "support/source_dir.h"

namespace sluice::cli {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

inline std::string model_dir() { return (testing::source_dir() / "models/needle").string(); }

inline Words joined(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Json json_of(const Words& words) {
  const Outcome outcome = run_sluice(joined(words, {"--json"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

// A command line, and a part of the error that it must give.
using WordsAndError = std::pair<Words, std::string>;

// Each must end with status 2 and no result.
inline void expect_usage_errors(const std::vector<WordsAndError>& lines) {
  for (const auto& [words, needle] : lines) {
    const Outcome outcome = run_sluice(words);
    EXPECT_EQ(outcome.exit_code, 2) << needle << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << needle;
    EXPECT_NE(outcome.err.find(needle), std::string::npos) << outcome.err;
  }
}

}  // namespace sluice::cli
