// Runs what is not there yet, then reads every needle.json: tests of this run and of earlier ones
// take the same way into the table.
#include "eval/grid.h"

#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/policy_list.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "eval/needle_run.h"
#include "eval/policy_table.h"
#include "io/file.h"
#include "text/json_text.h"

namespace sluice::eval {

using namespace cli;  // what programs print and read

namespace {

namespace fs = std::filesystem;

// One test of the table: a command with one kind and one policy.
struct GridTest {
  std::string policy;
  NeedleCommand command;
  std::string request = {};  // full_request of the command

  fs::path result_path() const { return fs::path(command.out) / "needle.json"; }
};

// The policies of the list; without one, that of the engine.
std::vector<NamedPolicy> policies_of(const NeedleCommand& command) {
  const SparseOptions& sparse = command.engine.sparse;
  if (command.policies.empty()) return policy_list({sparse.policy}, sparse);
  return policy_list(command.policies, sparse);
}

std::vector<GridTest> tests_of(const NeedleCommand& command,
                               const std::vector<NamedPolicy>& policies) {
  std::vector<GridTest> tests;
  for (const NamedPolicy& policy : policies) {
    for (const std::string& kind : command.kinds) {
      tests.push_back({.policy = policy.name, .command = command});
      NeedleCommand& single = tests.back().command;
      single.kind = kind;
      single.engine.sparse = policy.sparse;
      single.out = (fs::path(command.out) / policy.name / kind).string();
      if (!require_kind(single)->has_haystack()) single.depths = {0};
      tests.back().request = full_request(single);
    }
  }
  return tests;
}

// Whether the test has been run to its end. Errors: kInvalidArgument if its folder has a test that
// was asked for otherwise.
bool is_done(const GridTest& test) {
  if (!fs::exists(test.result_path())) return false;
  const NeedleTest found = read_needle_test(test.result_path());
  if (found.request != test.request) {
    fail(ErrorCode::kInvalidArgument,
         "--out: {} is there and was made by '{}', but now it is '{}'; give another directory, or "
         "remove it",
         test.result_path().string(), found.request, test.request);
  }
  return found.is_complete;
}

void run_test(const GridTest& test) {
  const std::string name = test.policy + ", " + test.command.kind;
  if (is_done(test)) return write_message(name + ": already there");
  write_message("asking " + name);
  const NeedleReport report = run_needle(test.command);
  write_report(report);
  write_picture(report);
  write_message(
      fmt::format("{}: {} in {}", name, result_text(report), format_seconds(report.seconds)));
}

// All tests that are complete.
PolicyTable read_table(const NeedleCommand& command, const std::vector<NamedPolicy>& policies,
                       const std::vector<GridTest>& tests) {
  PolicyTable table{
      .policies = {}, .kinds = command.kinds, .lengths = command.lengths, .tests = {}};
  for (const NamedPolicy& policy : policies) table.policies.push_back(policy.name);
  for (const GridTest& test : tests) {
    if (!is_done(test)) continue;
    table.tests.push_back(read_needle_test(test.result_path()));
    table.tests.back().policy = test.policy;
  }
  return table;
}

// The map with its titles. A policy without a complete test has an empty one.
HeatMap titled_map(const NeedleCommand& command, const PolicyTable& table,
                   const NamedPolicy& policy) {
  HeatMap map = policy_heat_map(table, policy.name, command.depths);
  map.title = fmt::format("{}: {}", policy.name, fmt::join(mapped_kinds(table.kinds), ", "));
  HeatMapCell sum;
  for (const auto& row : map.cells) {
    for (const HeatMapCell& cell : row) {
      sum.num_correct += cell.num_correct;
      sum.num_total += cell.num_total;
      sum.partial_score += cell.partial_score;
    }
  }
  const std::string score =
      sum.num_total == 0 ? "not measured" : fmt::format("score {:.1f} %", 100 * sum.share());
  map.subtitle = fmt::format("{} · {} · {}", score, model_name(command.engine.model),
                             describe_policy(policy.sparse));
  map.notes.push_back(fmt::format("{} question{} of each kind a cell · seed {} · greedy",
                                  command.needles, command.needles == 1 ? "" : "s",
                                  command.engine.seed));
  if (!table.tests.empty()) {
    const std::string& request = table.tests.front().request;
    map.notes.push_back(request.substr(0, request.find(": ")));
  }
  return map;
}

void write_table(const NeedleCommand& command, const std::vector<NamedPolicy>& policies,
                 const PolicyTable& table) {
  const fs::path out = command.out;
  write_file(out / "table.md", policy_table_markdown(table));
  write_file(out / "table.json", json_text(policy_table_json(table), 1));
  write_result(
      fmt::format("{}\n\n{}", fmt::join(policy_lines(policies), "\n"), policy_table_text(table)));
  for (const NamedPolicy& policy : policies) {
    const fs::path svg = out / (policy.name + ".svg");
    write_file(svg, heat_map_svg(titled_map(command, table, policy)));
    write_result("heat map: " + svg.string() + "\n");
  }
  write_result("table:    " + (out / "table.md").string() + "\n");
}

}  // namespace

int needle_grid(const NeedleCommand& command) {
  const std::vector<NamedPolicy> policies = policies_of(command);
  const std::vector<GridTest> tests = tests_of(command, policies);
  for (const GridTest& test : tests) is_done(test);  // refuses results of other settings
  try {
    for (const GridTest& test : tests) {
      if (interrupted()) break;
      run_test(test);
    }
  } catch (const Interrupted&) {
    // Ctrl-C before the first question of a test: the tests before it are reported.
  } catch (const Error&) {
    // A policy that the device does not run, for example: the tests before it are reported too.
    write_table(command, policies, read_table(command, policies, tests));
    throw;
  }
  write_table(command, policies, read_table(command, policies, tests));
  return interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace sluice::eval
