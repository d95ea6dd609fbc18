// The bench subcommands as programs: byte counts must match their formulas, rates must be
// plausible, and every error ends before anything is measured.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/program_under_test.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

constexpr int64_t kKvBytesPerToken = 3072;  // of models/needle
constexpr int64_t kBlock = 64;

std::string model_dir() {
  return (std::filesystem::path(SLUICE_SOURCE_DIR) / "models/needle").string();
}

Words joined(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Json json_of(const Words& words) {
  const Outcome outcome = run_sluice(joined(words, {"--json"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

// Small settings: a few blocks of context and of ring, one run without a warm-up.
Words small_kv(const std::string& command, const std::string& lengths) {
  return {"bench",
          command,
          model_dir(),
          "--device",
          "cpu",
          "--lengths",
          lengths,
          "--repeats",
          "0",
          "--decode-tokens",
          "4",
          "--num-kv-slots",
          "3",
          "--kv-slot-blocks",
          "2",
          "--kv-cache-bytes",
          "64M",
          "--block-size",
          std::to_string(kBlock)};
}

void expect_share(const Json& share, double most) {
  ASSERT_TRUE(share.is_number()) << share;
  EXPECT_TRUE(std::isfinite(share.get<double>()));
  EXPECT_GT(share, 0);
  EXPECT_LE(share, most);
}

void expect_spread(const Json& spread) {
  EXPECT_GT(spread.at("min"), 0);
  EXPECT_LE(spread.at("min"), spread.at("median"));
  EXPECT_LE(spread.at("median"), spread.at("max"));
}

void expect_link(const Json& json) {
  for (const char* rate :
       {"to_device_bytes_per_second", "to_host_bytes_per_second", "both_bytes_per_second"}) {
    expect_spread(json.at("link").at(rate));
  }
}

TEST(BenchFromOutside, TransferMeasuresEveryShape) {
  const Json json =
      json_of({"bench", "transfer", "--device", "cpu", "--bytes", "32M", "--repeats", "1"});
  expect_link(json);
  std::map<std::string, int> rows_of_group;
  for (const Json& result : json.at("results")) {
    ++rows_of_group[result.at("group")];
    expect_spread(result.at("bytes_per_second"));
    EXPECT_GE(result.at("unit_bytes"), 2048);
    // Small copies may come from a CPU's cache, and the bound may have been measured at a busy
    // moment.
    expect_share(result.at("share_of_bound"), 1000);
  }
  std::vector<int> counts;
  for (const auto& [group, count] : rows_of_group) counts.push_back(count);
  std::sort(counts.begin(), counts.end());
  EXPECT_EQ(counts, (std::vector<int>{4, 2 * 7, 7 * 2, 12 * 2, 5 * 6}))
      << "gathers, engine, sizes, runs, rows";
}

// The largest decimal number before " %" in the text.
double largest_share(const std::string& text) {
  double largest = 0;
  for (size_t at = text.find(" %"); at != text.npos; at = text.find(" %", at + 1)) {
    size_t begin = at;
    while (begin > 0 && (std::isdigit(text[begin - 1]) != 0 || text[begin - 1] == '.')) --begin;
    const std::string number = text.substr(begin, at - begin);
    if (number.find('.') != number.npos) largest = std::max(largest, std::stod(number));
  }
  return largest;
}

TEST(BenchFromOutside, TransferPrintsATableForEachShape) {
  const Outcome outcome =
      run_sluice({"bench", "transfer", "--device", "cpu", "--bytes", "32M", "--repeats", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {" to the device, ", "pinned memory, 1 repeat\n", "bound: one copy",
                            "copies back to back", "H2D row by row", "gather_pages", "H2D kernel",
                            "load + write-back", "blocks of 1024", "scattered, copies"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  // A share above the link's rate must come with an explanation.
  const double largest = largest_share(outcome.out);
  EXPECT_GT(largest, 1);
  if (std::abs(largest - 105) > 0.2) {
    EXPECT_EQ(outcome.out.find("shares above 100 %") != std::string::npos, largest > 105)
        << outcome.out;
  }
}

TEST(BenchFromOutside, DecodeAndPrefillSayWhatWasMeasured) {
  const Words small = {"--repeats", "1", "--prompt-lengths", "16", "--kv-cache-bytes", "64M"};
  const Outcome decode = run_sluice(joined({"bench", "decode", model_dir(), "-n", "4"}, small));
  ASSERT_EQ(decode.exit_code, 0) << decode.err;
  for (const char* words : {"needle, random weights, batch 1, 1 repeat: ", "tg4 @ d16"}) {
    EXPECT_NE(decode.out.find(words), std::string::npos) << words << "\n" << decode.out;
  }
  const Outcome prefill =
      run_sluice(joined({"bench", "prefill", model_dir(), "--load-format", "auto"}, small));
  ASSERT_EQ(prefill.exit_code, 0) << prefill.err;
  EXPECT_NE(prefill.out.find("prefill, needle, batch 1, 1 repeat: "), std::string::npos)
      << prefill.out;
  EXPECT_NE(prefill.out.find("pp16"), std::string::npos) << prefill.out;
}

// Bytes must match the formulas of docs/offload.md, shares the rates in the same row.
TEST(BenchFromOutside, OffloadCountsWhatMovesAndComparesWithResident) {
  const Json json = json_of(joined(small_kv("offload", "256,512"), {"--chunks", "128,1K"}));
  expect_link(json);
  const auto speed = [](const Json& row, const char* phase) {
    return row.at(phase).at("tokens_per_second").at("median").get<double>();
  };
  ASSERT_EQ(json.at("results").size(), 2u * 5);
  for (size_t i = 0; i < 10; ++i) {
    const Json& row = json.at("results")[i];
    const size_t first = i / 5 * 5;  // of this length; the first two rows do not offload
    const int64_t context = i < 5 ? 256 : 512;
    EXPECT_EQ(row.at("context_tokens"), context);
    const bool flows = row.at("kv_offload") != "off";
    EXPECT_EQ(flows, i % 5 >= 2);
    const int64_t num_chunks = row.at("prefill_chunk_tokens") == 128 ? context / 128 : 1;
    EXPECT_EQ(row.at("prefill").at("h2d_bytes"),
              flows ? num_chunks * (num_chunks - 1) / 2 * 128 * kKvBytesPerToken : 0);
    EXPECT_EQ(row.at("prefill").at("d2h_bytes"), flows ? context * kKvBytesPerToken : 0);
    EXPECT_EQ(row.at("decode").at("h2d_bytes"), flows ? 3 * context * kKvBytesPerToken : 0);
    EXPECT_EQ(row.at("pinned_peak_bytes") > context * kKvBytesPerToken, flows);
    EXPECT_GT(row.at("device_peak_bytes"), 0);
    for (const char* phase : {"prefill", "decode"}) {
      const Json& of_phase = row.at(phase);
      expect_spread(of_phase.at("tokens_per_second"));
      expect_share(of_phase.at("share_of_resident"), 1000);
      EXPECT_DOUBLE_EQ(of_phase.at("share_of_resident"),
                       speed(row, phase) / std::max(speed(json.at("results")[first], phase),
                                                    speed(json.at("results")[first + 1], phase)));
      if (flows) {
        expect_share(of_phase.at("share_of_link"), 10);
      } else {
        EXPECT_EQ(of_phase.at("share_of_link"), 0);
      }
    }
  }
}

TEST(BenchFromOutside, WhatDoesNotFitIsSaidAndTheRestMeasured) {
  const Words words = joined(small_kv("offload", "512"), {"--kv-cache-bytes", "1M"});
  const Json json = json_of(joined(words, {"--modes", "off,chunked"}));
  const Json& off = json.at("results")[0];
  EXPECT_NE(off.at("does_not_fit").get<std::string>().find("--kv-cache-bytes "), std::string::npos);
  EXPECT_FALSE(off.contains("decode"));
  EXPECT_TRUE(json.at("results")[1].at("decode").at("share_of_resident").is_null());

  const Outcome none = run_sluice(joined(words, {"--modes", "off"}));
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_NE(none.out.find("512, off does not fit"), std::string::npos) << none.out;
}

TEST(BenchFromOutside, BlocksThatStayDoNotFlow) {
  const Json json = json_of(
      joined(small_kv("offload", "512"), {"--modes", "chunked", "--device-bytes", "0,768K"}));
  const auto loaded = [&](size_t row) {
    return json.at("results")[row].at("decode").at("h2d_bytes").get<int64_t>();
  };
  EXPECT_EQ(loaded(0), 3 * 512 * kKvBytesPerToken);
  EXPECT_LT(loaded(1), loaded(0));
}

TEST(BenchFromOutside, SparseComparesBudgetsWithFull) {
  const Json json = json_of(
      joined(small_kv("sparse", "1K"), {"--policies", "full+quest,full+streaming", "--budgets",
                                        "128,256", "--sparse-page-tokens", "16"}));
  expect_link(json);
  const Json& results = json.at("results");
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0].at("policy"), "full");
  EXPECT_TRUE(results[0].at("budget_tokens").is_null());
  EXPECT_EQ(results[0].at("decode").at("h2d_bytes"), 3 * 1024 * kKvBytesPerToken);
  EXPECT_EQ(results[0].at("transferred_of_full"), 1);
  EXPECT_EQ(results[0].at("density_selected"), 1);
  for (size_t i = 1; i < 5; ++i) {
    const Json& row = results[i];
    EXPECT_EQ(row.at("policy"), i < 3 ? "full+quest" : "full+streaming");
    EXPECT_EQ(row.at("budget_tokens"), i % 2 == 1 ? 128 : 256);
    expect_share(row.at("density_selected"), 0.5);
    expect_share(row.at("transferred_of_full"), 0.5);
    expect_share(row.at("decode_speed_of_full"), 1000);
    EXPECT_EQ(row.at("prefill").at("d2h_bytes"), 1024 * kKvBytesPerToken);
    if (i % 2 == 1) continue;
    EXPECT_GT(row.at("density_selected"), results[i - 1].at("density_selected"));
    EXPECT_GT(row.at("transferred_of_full"), results[i - 1].at("transferred_of_full"));
  }
}

TEST(BenchFromOutside, SparseTakesTheEnginesOwnOptionsForOneRow) {
  const Json json = json_of(joined(
      small_kv("sparse", "256"), {"--sparse-policy", "full+quest", "--sparse-topk-tokens", "64"}));
  ASSERT_EQ(json.at("results").size(), 2u);
  EXPECT_EQ(json.at("results")[1].at("policy"), "full+quest");
  EXPECT_EQ(json.at("results")[1].at("budget_tokens"), 64);
}

// A row for each layer and one for all layers; with a budget of everything, all pages were selected
// in the step before.
TEST(BenchFromOutside, OverlapComparesTheListsOfSteps) {
  const Json json = json_of({"bench", "overlap", model_dir(), "--device", "cpu", "--lengths", "1K",
                             "--budgets", "128,2K", "--steps", "8", "--sparse-page-tokens", "16"});
  const Json& results = json.at("results");
  ASSERT_EQ(results.size(), 2u * 7);
  for (size_t i = 0; i < results.size(); ++i) {
    const Json& row = results[i];
    const bool all_layers = i % 7 == 6;
    EXPECT_EQ(row.at("layer").is_null(), all_layers);
    EXPECT_EQ(row.at("num_lists"), all_layers ? 6 * 8 : 8);
    EXPECT_EQ(row.at("page_tokens"), 16);
    const double previous = row.at("previous"), last_4 = row.at("last_4");
    EXPECT_EQ(row.at("budget_tokens"), i < 7 ? 128 : 2048);
    EXPECT_GT(previous, i < 7 ? 0 : 0.97) << "but a page that has just left the window";
    EXPECT_LE(row.at("previous_p10"), previous);
    EXPECT_LE(previous, last_4);
    EXPECT_LE(last_4, row.at("last_16"));
    EXPECT_EQ(row.at("lru_caches").size(), 3u);
    EXPECT_NEAR(row.at("lru_caches")[0].at("hit_share"), previous, 1e-9) << "one budget";
  }
}

// Results of one method and ask of bench recall.
const Json& recall_of(const Json& json, const std::string& method, const std::string& asked,
                      double share) {
  for (const Json& result : json.at("results")) {
    if (result.at("method") == method && result.at("asked") == asked &&
        std::abs(result.at("share").get<double>() - share) < 1e-9) {
      return result;
    }
  }
  ADD_FAILURE() << method << " " << asked << " " << share;
  return json.at("results")[0];
}

Words recall_words() {
  return {"bench", "recall",      model_dir(), "--device",         "cpu", "--length",
          "2K",    "--beyond",    "1000",      "--query-tiles",    "3",   "--densities",
          "30,60", "--coverages", "80",        "--kv-cache-bytes", "64M"};
}

TEST(BenchFromOutside, RecallJudgesEveryEstimatorByTrueMass) {
  const std::string svg = ::testing::TempDir() + "recall.svg";
  const Json json = json_of(joined(recall_words(), {"--svg", svg}));
  EXPECT_EQ(json.at("texts")[0].at("tokens"), 2048);
  EXPECT_EQ(json.at("texts")[0].at("num_query_tiles"), 8) << "8 to 15: 1000 is inside tile 7";
  EXPECT_EQ(json.at("texts")[0].at("measured_query_tiles").size(), 3u);
  // 17 methods with two densities; of oracle tiles and 13 estimators also a coverage.
  EXPECT_EQ(json.at("results").size(), 17u * 2 + 14);
  for (const Json& result : json.at("results")) {
    SCOPED_TRACE(result.at("method"));
    const double mean = result.at("mean");
    double sum = 0, least = 1;
    ASSERT_EQ(result.at("layers").size(), 6u);
    for (const Json& heads : result.at("layers")) {
      ASSERT_EQ(heads.size(), 2u);
      for (const double mass : heads) {
        sum += mass;
        least = std::min(least, mass);
      }
    }
    EXPECT_NEAR(mean, sum / 12, 1e-9);
    EXPECT_EQ(result.at("p5_of_heads"), least) << "of 12 heads";
    EXPECT_GT(least, 0);
    EXPECT_LT(mean, 1);
    if (result.at("asked") == "coverage") continue;
    const Json& oracle = recall_of(json, "oracle tiles", "density", result.at("share"));
    EXPECT_NEAR(result.at("tile_share"), oracle.at("tile_share"), 1e-9);
    // No list of tiles for the group has more mass in the mean over its heads.
    const bool is_tokens = result.at("method") == "oracle tokens";
    EXPECT_TRUE(is_tokens ? mean >= oracle.at("mean")
                          : mean <= oracle.at("mean").get<double>() + 1e-9);
  }
  EXPECT_GE(recall_of(json, "oracle tiles", "coverage", 0.8).at("mean"), 0.8 - 1e-6);
  EXPECT_LT(recall_of(json, "random", "density", 0.6).at("mean"),
            recall_of(json, "rows 4", "density", 0.6).at("mean"));
  EXPECT_TRUE(std::filesystem::exists(svg));
}

TEST(BenchFromOutside, RecallDoesNotDependOnThreadsOrPasses) {
  const Json a = json_of(recall_words());
  const Json b = json_of(joined(recall_words(), {"--threads", "1", "--max-num-seqs", "64"}));
  EXPECT_EQ(a.at("results"), b.at("results"));
  const Json other = json_of(joined(recall_words(), {"--seed", "5"}));
  EXPECT_NE(recall_of(a, "random", "density", 0.6), recall_of(other, "random", "density", 0.6));
  EXPECT_EQ(recall_of(a, "rows 4", "density", 0.6), recall_of(other, "rows 4", "density", 0.6));
}

// A text named twice is measured twice, and changes no mean.
TEST(BenchFromOutside, RecallReadsEachTextAlone) {
  const std::string text = model_dir() + "/haystack.txt";
  const Json once = json_of(joined(recall_words(), {"--text", text}));
  const Json twice = json_of(joined(recall_words(), {"--text", text, "--text", text}));
  EXPECT_EQ(twice.at("texts").size(), 2u);
  for (size_t i = 0; i < once.at("results").size(); ++i) {
    EXPECT_NEAR(once.at("results")[i].at("mean"), twice.at("results")[i].at("mean"), 1e-9);
  }
  const Outcome table = run_sluice(recall_words());
  ASSERT_EQ(table.exit_code, 0) << table.err;
  for (const char* words : {"2048 tokens of haystack.txt (3 of 8 query tiles)", "tiles asked for",
                            "coverage asked for", "antidiagonal 16"}) {
    EXPECT_NE(table.out.find(words), std::string::npos) << words << "\n" << table.out;
  }
}

// All settings are checked before anything is measured.
TEST(BenchFromOutside, BadOptionsAreErrors) {
  const std::vector<std::pair<Words, std::string>> lines = {
      {{"bench", "transfer", "--bytes", "1M"}, "--bytes"},
      {{"bench", "transfer", "--device", "abacus"}, "abacus"},
      {{"bench", "offload", model_dir(), "--modes", "sideways"}, "--modes: 'sideways'"},
      {{"bench", "offload", model_dir(), "--slots", "1"}, "--slots: '1'"},
      {{"bench", "offload", model_dir(), "--lengths", "128", "--block-sizes", "72"}, "block_size"},
      {{"bench", "offload", model_dir(), "--lengths", "128,1M"}, "max_model_len"},
      {{"bench", "offload"}, "no model given"},
      {{"bench", "sparse", model_dir(), "--lengths", "128", "--policies", "full+queest"},
       "full+queest"},
      {{"bench", "sparse", model_dir(), "--budgets", "0"}, "--budgets: '0'"},
      {{"bench", "sparse", model_dir(), "--decode-tokens", "1"}, "--decode-tokens: '1'"},
      {{"bench", "overlap", model_dir(), "--lengths", "32"}, "--lengths: 32 tokens"},
      {{"bench", "overlap", model_dir(), "--lengths", "100K"}, "max_model_len"},
      {{"bench", "overlap", model_dir(), "--sparse-policy", "full+streaming"}, "topk"},
      {{"bench", "overlap", model_dir(), "--file", model_dir() + "/config.json"},
       "config.json has"},
      {{"bench", "recall", model_dir(), "--length", "8K", "--beyond", "8K"},
       "--beyond: 8192 leaves no row"},
      {{"bench", "recall", model_dir(), "--densities", "100"}, "--densities: '100'"},
      {{"bench", "recall", model_dir(), "--text", "/no/such"}, "--text"},
      {{"bench", "recall", model_dir(), "--svg", "/no/such/recall.svg"}, "--svg"},
      {joined(recall_words(), {"--text", model_dir() + "/config.json"}), "config.json gives"},
      {{"bench", "recall", model_dir(), "--sparse-policy", "streaming"}, "--sparse-policy"},
  };
  for (const auto& [words, needle] : lines) {
    const Outcome outcome = run_sluice(words);
    EXPECT_EQ(outcome.exit_code, 2) << needle << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << needle;
    EXPECT_NE(outcome.err.find(needle), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace sluice::cli
