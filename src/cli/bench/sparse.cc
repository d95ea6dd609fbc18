// sluice bench sparse: measures how much faster decode becomes, and how much less is transferred,
// if a policy selects what attention reads. The policy "full", in the same run, is the reference.
// Runs on the main thread.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/kv_run.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/table.h"
#include "cli/units.h"

namespace sluice::cli {
namespace {

// Tokens that a policy reads per step.
using Budget = std::optional<int32_t>;

// The option that limits how much the policy reads in decode; null for "full". A pair
// "prefill+decode" is judged by its decode policy.
Budget SparseOptions::*budget_option(const std::string& policy) {
  const std::string decode = policy.substr(policy.find('+') + 1);  // npos + 1 = 0: the whole name
  if (decode == "full") return nullptr;
  if (decode == "streaming") return &SparseOptions::recent_tokens;
  return &SparseOptions::topk_tokens;
}

// The budget of a row; empty if its policy reads everything.
Budget budget_of(const KvRow& row) {
  const auto option = budget_option(row.engine.sparse.policy);
  return option ? row.engine.sparse.*option : Budget();
}

// The reference: the same engine without a policy.
EngineOptions full_engine(EngineOptions engine) {
  engine.sparse = {};
  return engine;
}

// Budgets to measure: the list, else the option if given, else three defaults.
std::vector<int32_t> budgets_of(const BenchSparseCommand& command, const Budget& given) {
  if (!command.budgets.empty()) return command.budgets;
  if (given) return {*given};
  return {512, 1024, 2048};
}

// The reference first, then every policy with every budget.
std::vector<EngineOptions> make_engines(const BenchSparseCommand& command) {
  std::vector<EngineOptions> engines = {full_engine(command.engine)};
  for (const std::string& policy : command.policies) {
    if (policy == "full") continue;
    EngineOptions engine = command.engine;
    engine.sparse.policy = policy;
    const auto option = budget_option(policy);
    if (!option) {
      engines.push_back(engine);
      continue;
    }
    for (const int32_t budget : budgets_of(command, command.engine.sparse.*option)) {
      engine.sparse.*option = budget;
      engines.push_back(engine);
    }
  }
  return engines;
}

// One row per length and engine.
std::vector<KvRow> make_rows(const BenchSparseCommand& command) {
  std::vector<KvRow> rows;
  for (const int64_t length : command.lengths) {
    for (const EngineOptions& engine : make_engines(command)) {
      rows.push_back({.engine = engine,
                      .work = {.prompt_tokens = length,
                               .decode_tokens = command.decode_tokens,
                               .repeats = command.repeats},
                      .result = {},
                      .planned_device_bytes = 0,
                      .does_not_fit = {}});
    }
  }
  return rows;
}

// A row relative to the reference of its length; empty if the reference has no result.
struct Comparison {
  std::optional<double> speed;        // ratio of decode rates: 2 is twice as fast
  std::optional<double> transferred;  // ratio of bytes to the device in decode
};

// REQUIRES: the row has a result.
Comparison compare(const std::vector<KvRow>& rows, const KvRow& row) {
  const auto is_reference = [&](const KvRow& other) {
    return other.work.prompt_tokens == row.work.prompt_tokens &&
           other.engine.sparse.policy == "full" && other.result;
  };
  const auto full = std::find_if(rows.begin(), rows.end(), is_reference);
  if (full == rows.end()) return {};
  const PhaseResult& ours = row.result->decode;
  const PhaseResult& theirs = full->result->decode;
  Comparison comparison;
  comparison.speed = ours.tokens_per_second.median / theirs.tokens_per_second.median;
  // Nothing is transferred if KV is on the device.
  if (theirs.h2d_bytes > 0) comparison.transferred = ours.h2d_bytes / theirs.h2d_bytes;
  return comparison;
}

// One line per row with a result.
std::string table(const std::vector<KvRow>& rows, const LinkRates& link) {
  Table table({"context", "policy", "budget", "decode tok/s", "of full", "H2D per token",
               "selected", "transferred", "link GB/s, share", "prefill tok/s",
               "device peak, of plan"});
  table.align_left(1);
  for (const KvRow& row : rows) {
    if (!row.result) continue;
    const PhaseResult& decode = row.result->decode;
    const Comparison comparison = compare(rows, row);
    const Budget budget = budget_of(row);
    table.add({format_tokens(row.work.prompt_tokens), row.engine.sparse.policy,
               budget ? format_tokens(*budget) : "-", rate_cell(decode.tokens_per_second),
               comparison.speed ? fmt::format("{:.2f} x", *comparison.speed) : "-",
               format_bytes(decode.h2d_bytes / decode.num_tokens),
               percent_or_dash(decode.density_selected), percent_or_dash(comparison.transferred),
               link_cell(decode, link), rate_cell(row.result->prefill.tokens_per_second),
               peak_cell(row)});
  }
  return table.to_string();
}

// Shares are null without a reference, or where only the device knows them.
nlohmann::ordered_json row_json(const std::vector<KvRow>& rows, const KvRow& row,
                                const LinkRates& link) {
  nlohmann::ordered_json budget_json = nullptr;
  if (const Budget budget = budget_of(row)) budget_json = *budget;
  nlohmann::ordered_json json = {{"context_tokens", row.work.prompt_tokens},
                                 {"policy", row.engine.sparse.policy},
                                 {"budget_tokens", budget_json}};
  if (!row.result) {
    json["does_not_fit"] = row.does_not_fit;
    return json;
  }
  const Comparison comparison = compare(rows, row);
  json["prefill"] = phase_json(row.result->prefill, link);
  json["decode"] = phase_json(row.result->decode, link);
  json["decode_speed_of_full"] = number_or_null(comparison.speed);
  json["density_selected"] = number_or_null(row.result->decode.density_selected);
  json["transferred_of_full"] = number_or_null(comparison.transferred);
  json["planned_device_bytes"] = row.planned_device_bytes;
  json["device_peak_bytes"] = row.result->device_peak_bytes;
  json["pinned_peak_bytes"] = row.result->pinned_peak_bytes;
  return json;
}

}  // namespace

int bench_sparse(const BenchSparseCommand& command) {
  const ModelSummary model = summarize_model(command.engine.model);
  std::vector<KvRow> rows = make_rows(command);
  const LinkRates link = measure_rows_and_link(&rows, model);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const KvRow& row : rows) results.push_back(row_json(rows, row, link));
  const std::string name = model_name(command.engine.model);
  const std::string text = fmt::format(
      "sparse, {}{}, KV {}, {} of KV per token, {} tokens generated, {}\n"
      "bound of what moves: {}\n\n{}\n{}",
      name, describe_weights(command.engine), kv_offload_name(command.engine.kv.offload),
      format_bytes(static_cast<double>(model.kv_bytes_per_token)), command.decode_tokens,
      describe_repeats(command.repeats), describe_link(link), table(rows, link),
      unfit_rows_text(rows));
  write_bench(command.json,
              {{"bench", "sparse"},
               {"model", name},
               {"kv_offload", kv_offload_name(command.engine.kv.offload)},
               {"kv_bytes_per_token", model.kv_bytes_per_token},
               {"decode_tokens", command.decode_tokens},
               {"repeats", command.repeats},
               {"link", link_json(link)},
               {"results", results}},
              machine_name(command.engine), text);
  return exit_code_for(rows);
}

}  // namespace sluice::cli
