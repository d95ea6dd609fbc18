// Runs benchmarks on the bundled model, for tests that read their JSON.
//
// Thread rule: main thread of the test.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cli/program_under_test.h"
#include "io/json_type.h"
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

inline constexpr int64_t kKvBytesPerToken = 3072;  // of models/needle

// Small settings behind `command`: a few blocks of context and of ring, one run without a warm-up.
inline Words small_kv(const Words& command, const std::string& lengths) {
  return joined(command, {model_dir(), "--device", "cpu", "--lengths", lengths, "--repeats", "0",
                          "--decode-tokens", "4", "--num-kv-slots", "3", "--kv-slot-blocks", "2",
                          "--kv-cache-bytes", "64M", "--block-size", "64"});
}

inline void expect_share(const Json& share, double most) {
  ASSERT_TRUE(share.is_number()) << share;
  EXPECT_TRUE(std::isfinite(share.get<double>()));
  EXPECT_GT(share, 0);
  EXPECT_LE(share, most);
}

inline void expect_spread(const Json& spread) {
  EXPECT_GT(spread.at("min"), 0);
  EXPECT_LE(spread.at("min"), spread.at("median"));
  EXPECT_LE(spread.at("median"), spread.at("max"));
}

inline void expect_link(const Json& json) {
  for (const char* rate :
       {"to_device_bytes_per_second", "to_host_bytes_per_second", "both_bytes_per_second"}) {
    expect_spread(json.at("link").at(rate));
  }
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
