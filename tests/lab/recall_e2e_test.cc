// sluice-lab recall as a program: its means, its independence of threads and passes, and its files.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string_view>
#include <vector>

#include "cli/bench_under_test.h"

namespace sluice::lab {

using namespace cli;  // helpers of tests

namespace {

// Results of one method and ask of sluice-lab recall.
const Json& recall_of(const Json& json, std::string_view method, std::string_view asked,
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
  return {"recall",      model_dir(), "--device",         "cpu", "--length",    "2K",
          "--beyond",    "1000",      "--query-tiles",    "3",   "--densities", "30,60",
          "--coverages", "80",        "--kv-cache-bytes", "64M"};
}

TEST(RecallFromOutside, JudgesEveryEstimatorByTrueMass) {
  const std::string svg = ::testing::TempDir() + "recall.svg";
  const Json json = json_of(joined(recall_words(), {"--svg", svg}));
  EXPECT_EQ(json.at("texts")[0].at("tokens"), 2048);
  EXPECT_EQ(json.at("texts")[0].at("num_query_tiles"), 8) << "8 to 15: 1000 is inside tile 7";
  EXPECT_EQ(json.at("texts")[0].at("measured_query_tiles").size(), 3u);
  // 19 methods with two densities; of oracle tiles and 14 estimators also a coverage.
  EXPECT_EQ(json.at("results").size(), 19u * 2 + 15);
  for (const Json& result : json.at("results")) {
    SCOPED_TRACE(result.at("method"));
    const double mean = result.at("mean");
    std::vector<double> masses;
    ASSERT_EQ(result.at("layers").size(), 6u);
    for (const Json& heads : result.at("layers")) {
      ASSERT_EQ(heads.size(), 4u);
      masses.insert(masses.end(), heads.begin(), heads.end());
    }
    std::ranges::sort(masses);
    EXPECT_NEAR(mean, std::accumulate(masses.begin(), masses.end(), 0.0) / 24, 1e-9);
    EXPECT_EQ(result.at("p5_of_heads"), masses[1]) << "5 % of 24 heads is one head";
    EXPECT_GT(masses[0], 0);
    EXPECT_LT(mean, 1);
    if (result.at("asked") == "coverage") continue;
    const Json& oracle = recall_of(json, "oracle tiles", "density", result.at("share"));
    const std::string method = result.at("method");
    const bool has_columns = method == "rows 4, columns" || method == "verticals";
    // Columns that lie in chosen tiles leave work undone.
    EXPECT_LE(result.at("tile_share"), oracle.at("tile_share").get<double>() + 1e-9);
    if (has_columns) continue;
    EXPECT_NEAR(result.at("tile_share"), oracle.at("tile_share"), 1e-9);
    // No list of tiles for the group has more mass in the mean over its heads.
    EXPECT_TRUE(method == "oracle tokens" ? mean >= oracle.at("mean")
                                          : mean <= oracle.at("mean").get<double>() + 1e-9);
  }
  EXPECT_GE(recall_of(json, "oracle tiles", "coverage", 0.8).at("mean"), 0.8 - 1e-6);
  EXPECT_LT(recall_of(json, "random", "density", 0.6).at("mean"),
            recall_of(json, "rows 4", "density", 0.6).at("mean"));
  EXPECT_TRUE(std::filesystem::exists(svg));
}

// Estimators against their recorded values, on the bundled model: a regression shows here. A
// coverage of true rows is honest: the mean is at most .02 less than asked, of heads 5 % are at
// most .10 less.
TEST(RecallFromOutside, EstimatorsCaptureWhatWasRecorded) {
  const Json json = json_of({"recall", model_dir(), "--device", "cpu", "--length", "4K", "--beyond",
                             "2K", "--query-tiles", "4", "--densities", "20", "--coverages",
                             "90,95", "--kv-cache-bytes", "64M"});
  for (const Json& result : json.at("results")) {
    const std::string method = result.at("method");
    if (result.at("asked") != "density" || method == "oracle tokens") continue;
    const double lost = result.at("lost_of_oracle");
    if (method == "random") {
      EXPECT_GT(lost, 1.15) << "a control that loses nothing controls nothing";
    } else if (method == "rows 4, columns") {
      EXPECT_LT(lost, 0.80) << "recorded: .75";
    } else if (method == "verticals") {
      EXPECT_LT(lost, 1.00) << "recorded: .96";
    } else {
      EXPECT_LE(lost, 1.05) << method << ", recorded: 1.00 to 1.02";
    }
  }
  for (const char* method : {"rows 4", "rows 4, columns"}) {
    for (const double share : {0.9, 0.95}) {
      const Json& result = recall_of(json, method, "coverage", share);
      EXPECT_GE(result.at("mean"), share - 0.02) << method;
      EXPECT_GE(result.at("p5_of_heads"), share - 0.10) << method;
    }
  }
}

TEST(RecallFromOutside, DoesNotDependOnThreadsOrPasses) {
  const Json a = json_of(recall_words());
  const Json b = json_of(joined(recall_words(), {"--threads", "1", "--max-num-seqs", "64"}));
  EXPECT_EQ(a.at("results"), b.at("results"));
  const Json other = json_of(joined(recall_words(), {"--seed", "5"}));
  EXPECT_NE(recall_of(a, "random", "density", 0.6), recall_of(other, "random", "density", 0.6));
  EXPECT_EQ(recall_of(a, "rows 4", "density", 0.6), recall_of(other, "rows 4", "density", 0.6));
}

// A text named twice is measured twice, and changes no mean.
TEST(RecallFromOutside, ReadsEachTextAlone) {
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

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The picture is the same for any number of threads, and the measurement for any picture.
TEST(RecallFromOutside, DrawsMasksBesideTheMeasurement) {
  const auto run = [](const std::string& name, const Words& more) {
    const std::string path = ::testing::TempDir() + name;
    const Json json = json_of(joined(recall_words(), joined({"--masks", path}, more)));
    return std::pair(slurp(path), json.at("results"));
  };
  const Words options = {"--sparse-threshold-tokens",
                         "0",
                         "--sparse-segment-tokens",
                         "512",
                         "--masks-layer",
                         "2",
                         "--masks-head",
                         "0",
                         "--policies",
                         "aggressive,minference+full"};
  const auto [svg, results] = run("masks.svg", options);
  EXPECT_NE(svg.find("Layer 2, KV head 0"), std::string::npos);
  EXPECT_NE(svg.find("aggressive: xattention+quest, topk 512, threshold 0"), std::string::npos);
  EXPECT_NE(svg.find(">minference+full<"), std::string::npos);
  EXPECT_EQ(run("masks_1.svg", joined(options, {"--threads", "1"})).first, svg);
  EXPECT_NE(run("masks_3.svg", joined(options, {"--masks-layer", "3"})).first, svg);
  EXPECT_EQ(json_of(recall_words()).at("results"), results);
}

// All settings are checked before anything is measured.
TEST(RecallFromOutside, BadOptionsAreErrors) {
  const std::string masks = ::testing::TempDir() + "none.svg";
  const std::vector<WordsAndError> lines = {
      {{"recall", model_dir(), "--length", "8K", "--beyond", "8K"}, "--beyond: 8192 leaves no row"},
      {{"recall", model_dir(), "--densities", "100"}, "--densities: '100'"},
      {{"recall", model_dir(), "--text", "/no/such"}, "--text"},
      {{"recall", model_dir(), "--svg", "/no/such/recall.svg"}, "--svg"},
      {joined(recall_words(), {"--text", model_dir() + "/config.json"}), "config.json gives"},
      {{"recall", model_dir(), "--sparse-policy", "streaming"}, "--sparse-policy"},
      {{"recall", model_dir(), "--sparse-coverage", "0.5"}, "sparse_coverage is given"},
      {{"recall", model_dir(), "--policies", "aggressive"}, "only --masks FILE draws"},
      {{"recall", model_dir(), "--masks-layer", "1"}, "only --masks FILE draws"},
      {{"recall", model_dir(), "--masks", "/no/such/masks.svg"}, "--masks"},
      {{"recall", model_dir(), "--masks", masks, "--masks-layer", "6"},
       "--masks-layer: 6 is not from 0 to 5"},
      {{"recall", model_dir(), "--masks", masks, "--masks-head", "2"},
       "--masks-head: 2 is not from 0 to 1"},
      {{"recall", model_dir(), "--masks", masks, "--policies", "sampled"}, "sampled+full"},
      {{"recall", model_dir(), "--masks", masks, "--length", "20K"}, "lower --length"},
  };
  expect_usage_errors(lines);
}

}  // namespace
}  // namespace sluice::lab
