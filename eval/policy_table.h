// Several needle tests as one table: scores by policy, kind and length, beside those of "full".
//
// Used by grid.cc, which reads the tests from their needle.json. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "eval/heat_map.h"

namespace sluice::eval {

// The answers of one length and depth.
struct TestCell {
  int64_t length_tokens = 0;
  int32_t depth_percent = 0;
  HeatMapCell answers;
};

// The result of one kind with one policy.
struct NeedleTest {
  std::string policy;
  std::string kind;
  std::string request;  // what was asked for, by which program and on which machine
  bool is_complete = false;
  std::vector<TestCell> cells;
  std::optional<double> visited;   // share of KV that prefill attended to; empty if unknown
  std::optional<double> selected;  // the same of decode
};

// A needle.json. Errors: kIo; kModel naming the file if it is not one.
NeedleTest read_needle_test(const std::filesystem::path& path);

// The axes of a table. Lengths are those asked for, ascending: a test may have shortened the
// longest of them to leave room for an answer.
struct PolicyTable {
  std::vector<std::string> policies, kinds;
  std::vector<int64_t> lengths;
  std::vector<NeedleTest> tests;  // in any order; those that are not there have not been run
};

// The mean score of a test in the column of a length, [0, 1]; empty if nothing was measured.
std::optional<double> score_of(const NeedleTest& test, int64_t length);
// The same as a mean over the kinds; empty unless all were measured.
std::optional<double> mean_score(const PolicyTable& table, const std::string& policy,
                                 int64_t length);

// A row for each policy and kind, and one for the mean of several kinds. A score in percent is
// followed by its difference to that of the policy "full", if the table has it.
std::string policy_table_text(const PolicyTable& table);
std::string policy_table_markdown(const PolicyTable& table);
nlohmann::ordered_json policy_table_json(const PolicyTable& table);

// The kinds that a heat map of several can add up: those with depths or, if none has, all.
std::vector<std::string> mapped_kinds(const std::vector<std::string>& kinds);

// The answers of these kinds for one policy, by depth and length. The caller adds title and notes.
HeatMap policy_heat_map(const PolicyTable& table, const std::string& policy,
                        const std::vector<int32_t>& depths);

}  // namespace sluice::eval
