// Runs one prompt length with one KV configuration: loads an engine, warms up and measures by
// phase. Rows take turns, so that ratios between them are ratios of the same time of the run.
//
// Used by `sluice bench offload` and `sluice-lab sparse`, whose rows are such runs. Thread rule:
// main thread, with no other load.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "attention/policy_pair.h"
#include "cli/bench/link.h"
#include "sluice/engine_options.h"
#include "sluice/inspect.h"

namespace sluice::cli {

// What every run of a row does.
struct KvWork {
  int64_t prompt_tokens = 0;
  int32_t decode_tokens = 0;  // generated; prefill samples the first, so there is one step less
  int32_t repeats = 0;        // runs after one to warm up; 0 measures the first run
  // Tokens of the prompts, from another place in each run and from the start again where they end.
  // Null: random ids. Outlives the row.
  const std::vector<int32_t>* text = nullptr;
};

// One phase of a row. Seconds are the median over runs; bytes are equal in all runs.
struct PhaseResult {
  Spread tokens_per_second;
  double num_tokens = 0;  // of one run
  double seconds = 0;
  double h2d_bytes = 0;  // all layers
  double d2h_bytes = 0;
  std::optional<double> density_selected;  // of all runs, warm-ups too; empty if unknown

  // Bytes per second in both directions together.
  double link_rate() const { return (h2d_bytes + d2h_bytes) / seconds; }
  // Time that the busier direction of the link needs for these bytes, over the phase's time. 1
  // means that the phase is limited by the link.
  double link_share(const LinkRates& link) const;
};

// The softmax mass that prefill's masks held, as --sparse-audit measures it.
struct CapturedMass {
  double mean = 0;          // over layers
  double lowest_layer = 0;  // the mean of the layer that lost most
  int64_t num_rows = 0;     // of all layers and runs, warm-ups too
};

// The measurement of a row.
struct KvResult {
  std::string kv_offload;  // the mode used; "auto" is resolved
  PhaseResult prefill;
  PhaseResult decode;
  std::optional<CapturedMass> captured;  // with --sparse-audit, if a row was measured
  double device_peak_bytes = 0;          // most memory at one time, weights included
  double pinned_peak_bytes = 0;
};

// One row of a benchmark: its configuration and, after the run, its result.
struct KvRow {
  std::string policy = {};  // the configuration's name, in `sluice-lab sparse`
  EngineOptions engine;
  KvWork work;
  // Policies in place of those that the options name; empty: those.
  std::function<std::unique_ptr<PolicyPair>(const EngineOptions&)> own_policies = {};
  // Device memory that they take beside the plan's; empty: none. Called before anything is loaded.
  std::function<size_t(const EngineOptions&, int32_t block_tokens)> own_policy_bytes = {};
  std::optional<KvResult> result;
  double planned_device_bytes = 0;  // device memory of the plan, as `sluice inspect` prints it
  std::string does_not_fit;         // the reason and remedy if there is no result
};

// Sets the mode and unsets options that it does not have: layer-wise prefill takes whole prompts.
void set_mode(KvOffload mode, EngineOptions* engine);

// Sizes for one request of `longest` tokens, prompt and answer, where none were given; no prefix
// cache.
void size_for_one_request(int64_t longest, const ModelSummary& model, EngineOptions* engine);

// Completes and plans the options of all rows, then loads, measures and frees one engine after the
// other. With two repeats or more this is done twice, the second time from the last row to the
// first: a machine that becomes slower or faster changes all rows alike. Planning all first means
// that contradictory options end the command before a measurement. A row that does not fit is
// skipped and says why. The link is measured before and after, without an engine; returns the
// larger rates. Errors: kInvalidArgument, those of own_policy_bytes included, and those of LLM
// except kDoesNotFit; Interrupted.
LinkRates measure_rows_and_link(std::vector<KvRow>* rows, const ModelSummary& model);

// kExitDoesNotFit if no row has a result, else kExitOk.
int exit_code_for(const std::vector<KvRow>& rows);

// "32K, chunked, aggressive": names a row in messages.
std::string row_label(const KvRow& row);

// One line for each row without a result.
std::string unfit_rows_text(const std::vector<KvRow>& rows);

// A phase as JSON: tokens, bytes, rates and shares of the link.
nlohmann::ordered_json phase_json(const PhaseResult& phase, const LinkRates& link);

// For tables and JSON: "12.3 %" or "-", a number or null.
std::string percent_or_dash(const std::optional<double>& share);
nlohmann::ordered_json number_or_null(const std::optional<double>& value);
// "median of 3 runs after one to warm up".
std::string describe_repeats(int32_t repeats);
// "1.52 x" or "-".
std::string ratio_cell(const std::optional<double>& ratio);
// The median; with the spread if there was more than one run.
std::string rate_cell(const Spread& tokens_per_second);
// Peak of device memory, and its share of the plan. REQUIRES: the row has a result.
std::string peak_cell(const KvRow& row);
// "12.30  45.6 %": GB/s in both directions and link_share.
std::string link_cell(const PhaseResult& phase, const LinkRates& link);

}  // namespace sluice::cli
