// Sums over cells, and rows of text.
#include "eval/policy_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/table.h"
#include "cli/units.h"
#include "eval/ruler_tasks.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice::eval {

using namespace cli;  // what programs print and read

namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxCount = int64_t{1} << 40;
constexpr const char* kReference = "full";

TestCell read_cell(const JsonObject& json) {
  TestCell cell{.length_tokens = json.get_int("length", 1, kMaxCount),
                .depth_percent = static_cast<int32_t>(json.get_int("depth", 0, 100)),
                .answers = {}};
  HeatMapCell& answers = cell.answers;
  answers.num_correct = static_cast<int32_t>(json.get_int("correct", 0, INT32_MAX));
  answers.num_total = static_cast<int32_t>(json.get_int("total", 0, INT32_MAX));
  // Rounding must not make it negative where all are right.
  answers.partial_score =
      std::max(0.0, json.get_double("score", 0, 1) * answers.num_total - answers.num_correct);
  return cell;
}

// False for a task with a text of its own, which has one row.
bool has_depths(const std::string& kind) {
  const auto task = make_ruler_task(kind);
  return !task || task->has_haystack();
}

void add(const HeatMapCell& answers, HeatMapCell* sum) {
  sum->num_correct += answers.num_correct;
  sum->num_total += answers.num_total;
  sum->partial_score += answers.partial_score;
}

// The length of the test's cells in the column of `length`: the longest that is no longer. 0 if
// there is none.
int64_t own_length(const NeedleTest& test, int64_t length) {
  int64_t longest = 0;
  for (const TestCell& cell : test.cells) {
    if (cell.length_tokens <= length) longest = std::max(longest, cell.length_tokens);
  }
  return longest;
}

const NeedleTest* find_test(const PolicyTable& table, const std::string& policy,
                            const std::string& kind) {
  const auto found = std::find_if(
      table.tests.begin(), table.tests.end(),
      [&](const NeedleTest& test) { return test.policy == policy && test.kind == kind; });
  return found == table.tests.end() ? nullptr : &*found;
}

std::optional<double> score_at(const PolicyTable& table, const std::string& policy,
                               const std::string& kind, int64_t length) {
  const NeedleTest* test = find_test(table, policy, kind);
  return test == nullptr ? std::nullopt : score_of(*test, length);
}

// "97.5 (-2.5)"; without a reference only the score.
std::string score_cell(const std::optional<double>& score, const std::optional<double>& reference,
                       bool is_reference) {
  if (!score) return "-";
  const std::string text = fmt::format("{:.1f}", 100 * *score);
  if (!reference || is_reference) return text;
  const double difference = 100 * (*score - *reference);
  // No "-0.0".
  if (std::abs(difference) < 0.05) return text + " (0.0)";
  return fmt::format("{} ({:+.1f})", text, difference);
}

std::string share_cell(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

std::vector<std::string> header_of(const PolicyTable& table) {
  std::vector<std::string> header = {"policy", "kind"};
  for (const int64_t length : table.lengths) header.push_back(format_tokens(length));
  header.insert(header.end(), {"visited", "selected"});
  return header;
}

// One row: the scores of `score(policy, length)` and their differences to those of "full".
template <typename Score>
std::vector<std::string> row_of(const PolicyTable& table, const std::string& policy,
                                const std::string& kind, const Score& score) {
  std::vector<std::string> cells = {policy, kind};
  for (const int64_t length : table.lengths) {
    cells.push_back(
        score_cell(score(policy, length), score(kReference, length), policy == kReference));
  }
  return cells;
}

std::vector<std::vector<std::string>> rows_of(const PolicyTable& table) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& policy : table.policies) {
    for (const std::string& kind : table.kinds) {
      rows.push_back(row_of(table, policy, kind, [&](const std::string& p, int64_t length) {
        return score_at(table, p, kind, length);
      }));
      const NeedleTest* test = find_test(table, policy, kind);
      rows.back().push_back(share_cell(test ? test->visited : std::nullopt));
      rows.back().push_back(share_cell(test ? test->selected : std::nullopt));
    }
    if (table.kinds.size() < 2) continue;
    rows.push_back(row_of(table, policy, "mean", [&](const std::string& p, int64_t length) {
      return mean_score(table, p, length);
    }));
    rows.back().insert(rows.back().end(), {"", ""});
  }
  return rows;
}

ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace

NeedleTest read_needle_test(const std::filesystem::path& path) {
  const nlohmann::json document = read_json_file(path);
  const JsonObject json(document, path.string());
  const JsonObject observations = json.get_object("observations");
  NeedleTest test{
      .policy = {},
      .kind = json.get_object("settings").get_string("Kind"),
      .request = json.find_string("request").value_or(""),
      .is_complete = json.get_bool("complete"),
      .cells = {},
      .visited = observations.get_object("prefill").find_double("density_selected", 0, 1),
      .selected = observations.get_object("decode").find_double("density_selected", 0, 1)};
  for (const nlohmann::json& cell : json.get("cells")) {
    test.cells.push_back(read_cell(JsonObject(cell, path.string() + ": cells")));
  }
  return test;
}

std::optional<double> score_of(const NeedleTest& test, int64_t length) {
  HeatMapCell sum;
  const int64_t own = own_length(test, length);
  for (const TestCell& cell : test.cells) {
    if (cell.length_tokens == own) add(cell.answers, &sum);
  }
  if (sum.num_total == 0) return {};
  return sum.share();
}

std::optional<double> mean_score(const PolicyTable& table, const std::string& policy,
                                 int64_t length) {
  double sum = 0;
  for (const std::string& kind : table.kinds) {
    const std::optional<double> score = score_at(table, policy, kind, length);
    if (!score) return {};
    sum += *score;
  }
  return sum / static_cast<double>(table.kinds.size());
}

std::string policy_table_text(const PolicyTable& table) {
  Table text(header_of(table));
  text.align_left(1);
  for (const auto& row : rows_of(table)) text.add(row);
  return text.to_string();
}

std::string policy_table_markdown(const PolicyTable& table) {
  const std::vector<std::string> header = header_of(table);
  std::string text = fmt::format("| {} |\n|", fmt::join(header, " | "));
  for (size_t i = 0; i < header.size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : rows_of(table)) text += fmt::format("| {} |\n", fmt::join(row, " | "));
  return text;
}

ordered_json policy_table_json(const PolicyTable& table) {
  ordered_json results = ordered_json::array();
  for (const std::string& policy : table.policies) {
    for (const std::string& kind : table.kinds) {
      const NeedleTest* test = find_test(table, policy, kind);
      if (test == nullptr) continue;
      ordered_json scores = ordered_json::array();
      for (const int64_t length : table.lengths) {
        const std::optional<double> score = score_of(*test, length);
        const std::optional<double> full = score_at(table, kReference, kind, length);
        scores.push_back({{"length", length},
                          {"score", or_null(score)},
                          {"difference_to_full",
                           or_null(score && full ? std::optional(*score - *full) : std::nullopt)}});
      }
      results.push_back({{"policy", policy},
                         {"kind", kind},
                         {"scores", scores},
                         {"visited", or_null(test->visited)},
                         {"selected", or_null(test->selected)},
                         {"request", test->request}});
    }
  }
  return results;
}

std::vector<std::string> mapped_kinds(const std::vector<std::string>& kinds) {
  std::vector<std::string> mapped;
  std::copy_if(kinds.begin(), kinds.end(), std::back_inserter(mapped), has_depths);
  return mapped.empty() ? kinds : mapped;
}

HeatMap policy_heat_map(const PolicyTable& table, const std::string& policy,
                        const std::vector<int32_t>& depths) {
  const std::vector<std::string> kinds = mapped_kinds(table.kinds);
  HeatMap map;
  map.lengths = table.lengths;
  map.depths = depths;
  map.cells.assign(depths.size(), std::vector<HeatMapCell>(table.lengths.size()));
  map.has_depths = has_depths(kinds.front());
  for (const std::string& kind : kinds) {
    map.counts_share = map.counts_share || make_ruler_task(kind);
    const NeedleTest* test = find_test(table, policy, kind);
    if (test == nullptr) continue;
    for (size_t column = 0; column < table.lengths.size(); ++column) {
      const int64_t own = own_length(*test, table.lengths[column]);
      for (const TestCell& cell : test->cells) {
        const auto row = std::find(depths.begin(), depths.end(), cell.depth_percent);
        if (cell.length_tokens != own || row == depths.end()) continue;
        add(cell.answers, &map.cells[static_cast<size_t>(row - depths.begin())][column]);
      }
    }
  }
  return map;
}

}  // namespace sluice::eval
