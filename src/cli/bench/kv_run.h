// One configuration of KV, one length of prompt: loaded, warmed up and measured by phase.
//
// Used by `sluice bench offload` and `sluice bench sparse`, whose rows are such runs. Thread rule:
// main thread, nothing else running.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/bench/link.h"
#include "sluice/engine_options.h"
#include "sluice/inspect.h"

namespace sluice::cli {

struct KvWork {
  int64_t prompt_tokens = 0;
  int32_t decode_tokens = 0;  // generated: the first comes from prefill, so there is a step less
  int32_t repeats = 0;        // after one run to warm up; 0 measures the first
};

// A phase of one run; bytes and seconds are those of a median run.
struct PhaseResult {
  Spread tokens_per_second;
  double num_tokens = 0;
  double seconds = 0;
  double h2d_bytes = 0;
  double d2h_bytes = 0;
  std::optional<double> density_selected;  // where the engine knows it

  // Bytes per second in both directions together.
  double link_rate() const { return (h2d_bytes + d2h_bytes) / seconds; }
  // Share of the link's time in the busier direction: 1 means that the phase waits for nothing
  // else.
  double link_share(const LinkRates& link) const;
};

struct KvResult {
  std::string kv_offload;  // what "auto" became
  PhaseResult prefill;
  PhaseResult decode;
  double device_peak_bytes = 0;
  double pinned_peak_bytes = 0;
};

// One row of a benchmark: what to run and, afterwards, what came of it.
struct KvRow {
  EngineOptions engine;
  KvWork work;
  std::optional<KvResult> result;
  double planned_device_bytes = 0;  // what `sluice inspect` says
  std::string does_not_fit;         // without a result: what would have to change
};

// Completes the options of every row: one sequence, no prefix reuse, room for the longest request
// on the host. Plans them all, so that options that do not go together end the command before
// anything was measured, then loads, measures and frees one after the other. A row that does not
// fit says so and is passed over. The link is measured before and after, without an engine. Errors:
// kInvalidArgument and those of LLM but kDoesNotFit; Interrupted.
LinkRates measure_rows_and_link(std::vector<KvRow>* rows, const ModelSummary& model);

// kExitDoesNotFit when no row has a result.
int exit_code_for(const std::vector<KvRow>& rows);

// "32K, chunked": what a person calls a row.
std::string row_label(const KvRow& row);

// Lines for the rows that have no result; empty when all have one.
std::string unfit_rows_text(const std::vector<KvRow>& rows);

// A phase as JSON: tokens, bytes, rates and shares of the link.
nlohmann::ordered_json phase_json(const PhaseResult& phase, const LinkRates& link);

// For tables and JSON: "12.3 %" or "-", a number or null.
std::string percent_or_dash(const std::optional<double>& share);
nlohmann::ordered_json number_or_null(const std::optional<double>& value);
// "median of 3 runs after one to warm up".
std::string describe_repeats(int32_t repeats);
// The median, with the spread where there is one.
std::string rate_cell(const Spread& tokens_per_second);
// Device memory taken, and its share of what was planned. REQUIRES: the row has a result.
std::string peak_cell(const KvRow& row);
// Rate in GB/s and share of the link.
std::string link_cell(const PhaseResult& phase, const LinkRates& link);

}  // namespace sluice::cli
