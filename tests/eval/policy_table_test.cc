// Tables of needle tests: scores by length and policy, differences to full, and what is missing.
#include "eval/policy_table.h"

#include <gtest/gtest.h>

#include "eval/request.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/temp_dir.h"

namespace sluice::eval {
namespace {

TestCell cell(int64_t length, int32_t depth, int32_t num_correct, int32_t num_total,
              double partial = 0) {
  return {length,
          depth,
          {.num_correct = num_correct, .num_total = num_total, .partial_score = partial}};
}

NeedleTest test_of(const std::string& policy, const std::string& kind,
                   std::vector<TestCell> cells) {
  return {.policy = policy,
          .kind = kind,
          .request = "r",
          .is_complete = true,
          .cells = std::move(cells),
          .visited = 0.25,
          .selected = {}};
}

// Of "vt" the longest length was shortened, and "sampled" has not been run on it.
PolicyTable small_table() {
  return {.policies = {"full", "sampled"},
          .kinds = {"number", "vt"},
          .lengths = {1024, 4096},
          .tests = {test_of("full", "number",
                            {cell(1024, 0, 4, 4), cell(1024, 50, 4, 4), cell(4096, 0, 3, 4),
                             cell(4096, 50, 2, 4)}),
                    test_of("full", "vt",
                            {cell(1024, 0, 1, 4, 1.5), cell(1024, 50, 0, 4, 1),
                             cell(3968, 0, 0, 4, 1), cell(3968, 50, 0, 4, 0)}),
                    test_of("sampled", "number",
                            {cell(1024, 0, 4, 4), cell(1024, 50, 3, 4), cell(4096, 0, 4, 4),
                             cell(4096, 50, 4, 4)})}};
}

TEST(PolicyTable, ScoresAreMeansOfTheirLength) {
  const PolicyTable table = small_table();
  EXPECT_EQ(score_of(table.tests[0], 1024), 1.0);
  EXPECT_EQ(score_of(table.tests[0], 4096), 5.0 / 8);
  EXPECT_EQ(score_of(table.tests[1], 4096), 1.0 / 8) << "3968 stands for 4096";
  EXPECT_FALSE(score_of(table.tests[1], 512)) << "shorter than all";
  EXPECT_EQ(mean_score(table, "full", 1024), (1.0 + 3.5 / 8) / 2);
  EXPECT_FALSE(mean_score(table, "sampled", 1024)) << "one kind is not there";
}

TEST(PolicyTable, EveryRowStandsBesideFull) {
  const PolicyTable table = small_table();
  EXPECT_EQ(policy_table_markdown(table),
            "| policy | kind | 1K | 4K | visited | selected |\n"
            "|---|---|---|---|---|---|\n"
            "| full | number | 100.0 | 62.5 | 25.0 % | - |\n"
            "| full | vt | 43.8 | 12.5 | 25.0 % | - |\n"
            "| full | mean | 71.9 | 37.5 |  |  |\n"
            "| sampled | number | 87.5 (-12.5) | 100.0 (+37.5) | 25.0 % | - |\n"
            "| sampled | vt | - | - | - | - |\n"
            "| sampled | mean | - | - |  |  |\n");
  const auto json = policy_table_json(table);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[2].at("scores")[0].at("difference_to_full"), -0.125);
  PolicyTable alone = table;
  alone.policies = {"sampled"};
  alone.tests.erase(alone.tests.begin(), alone.tests.begin() + 2);
  EXPECT_NE(policy_table_text(alone).find("87.5  100.0"), std::string::npos)
      << policy_table_text(alone);
}

TEST(PolicyTable, TheMapAddsUpTheKindsWithDepths) {
  PolicyTable table = small_table();
  table.kinds.emplace_back("cwe");
  table.tests.push_back(test_of("full", "cwe", {cell(1024, 0, 0, 4), cell(4000, 0, 0, 4)}));
  EXPECT_EQ(mapped_kinds(table.kinds), (std::vector<std::string>{"number", "vt"}));
  EXPECT_EQ(mapped_kinds({"cwe", "fwe"}), (std::vector<std::string>{"cwe", "fwe"}));
  const HeatMap map = policy_heat_map(table, "full", {0, 50});
  EXPECT_TRUE(map.has_depths);
  EXPECT_TRUE(map.counts_share);
  ASSERT_EQ(map.cells.size(), 2u);
  EXPECT_EQ(map.cells[0][0].num_total, 8) << "without cwe";
  EXPECT_EQ(map.cells[0][0].num_correct, 5);
  EXPECT_DOUBLE_EQ(map.cells[0][0].share(), 6.5 / 8);
  EXPECT_DOUBLE_EQ(map.cells[1][1].share(), 2.0 / 8);
  EXPECT_EQ(policy_heat_map(table, "sampled", {0, 50}).cells[1][1].num_total, 4);
}

TEST(PolicyTable, ReadsWhatNeedleWrote) {
  TempDir dir;
  const std::string text =
      R"({"complete": true, "request": "x", "settings": {"Kind": "vt"},
    "cells": [{"length": 1024, "depth": 50, "correct": 1, "total": 4, "score": 0.4}],
    "observations": {"prefill": {"density_selected": 0.5}, "decode": {"density_selected": null}}})";
  dir.write("needle.json", text);
  const NeedleTest test = read_needle_test(dir.path() / "needle.json");
  EXPECT_EQ(test.kind, "vt");
  EXPECT_EQ(test.request, "x");
  EXPECT_TRUE(test.is_complete);
  EXPECT_DOUBLE_EQ(score_of(test, 2048).value(), 0.4);
  EXPECT_EQ(test.visited, 0.5);
  EXPECT_FALSE(test.selected);
  dir.write("needle.json", "{}");
  const std::string error =
      expect_error(ErrorCode::kModel, [&] { read_needle_test(dir.path() / "needle.json"); });
  EXPECT_TRUE(contains(error, "needle.json"));
}

TEST(NeedleRequest, NamesEveryOptionThatChangesAnswers) {
  NeedleCommand command;
  command.engine.model = "m";
  command.lengths = {1024, 2048};
  const std::string plain = needle_request(command);
  EXPECT_EQ(plain,
            "--kind number --lengths 1024,2048 --depths 0,25,50,75,100 --needles 4 --seed 0 "
            "--model m");
  const auto changed = [&](auto change) {
    NeedleCommand other = command;
    change(other);
    return needle_request(other);
  };
  EXPECT_EQ(changed([](NeedleCommand& c) { c.out = "x", c.verbose = c.gpu_lock = true; }), plain);
  EXPECT_EQ(changed([](NeedleCommand& c) { c.max_tokens = 9; }),
            plain.substr(0, plain.find(" --model")) + " --max-tokens 9 --model m");
  EXPECT_NE(changed([](NeedleCommand& c) { c.engine.seed = 3; }), plain);
  EXPECT_NE(changed([](NeedleCommand& c) { c.haystack = "repeated"; }), plain);
  EXPECT_EQ(changed([](NeedleCommand& c) {
              c.engine.sparse.policy = "xattention+quest";
              c.engine.sparse.coverage = 0.8;
              c.engine.kv.offload = KvOffload::kLayerwise;
              c.engine.enable_prefix_caching = false;
            }),
            plain +
                " --no-prefix-caching --kv-offload layerwise --sparse-policy xattention+quest "
                "--sparse-coverage 0.8");
}

}  // namespace
}  // namespace sluice::eval
