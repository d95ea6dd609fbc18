// The options of `sluice-eval needle`: their struct, their declaration and their check.
//
// Used by program.cc through cli/subcommand.h. Thread rule: values; main thread, before other
// threads start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/invocation.h"
#include "cli/options/option_set.h"
#include "sluice/engine_options.h"

namespace sluice::eval {

// `sluice-eval needle`: a grid of lengths and depths with several needles per cell, for each kind
// and policy.
struct NeedleCommand {
  EngineOptions engine;
  std::vector<int64_t> lengths = {1024, 2048, 4096};   // tokens of the whole prompt
  std::vector<int32_t> depths = {0, 25, 50, 75, 100};  // percent of the text before the needle
  int32_t needles = 4;                                 // different needles per cell
  std::vector<std::string> kinds = {"number"};         // of needle_templates.json, or of RULER
  std::string kind = "number";                         // of one test; the first of `kinds`
  std::vector<std::string> policies;                   // a table by policy; empty: that of `engine`
  std::string haystack;                                // a file, "repeated", or "" for the model's
  std::string templates;                               // a file; "" for the model's
  std::string out = "needle-results";
  bool save_prompts = false;          // as prompts.jsonl
  std::optional<int32_t> max_tokens;  // empty: the expected answer's length and a few more
  bool verbose = false;
  bool gpu_lock = false;

  // Several tests, whose results are one table.
  bool is_table() const { return kinds.size() > 1 || !policies.empty(); }
};

// Declares options that write into the command, which outlives the set.
void declare(cli::OptionSet& set, NeedleCommand* needle);

// Refuses contradictions and sorts the axes of the grid. Errors: kInvalidArgument naming the
// option, its value and a remedy.
void check(NeedleCommand* needle, const cli::Given& given);

}  // namespace sluice::eval
