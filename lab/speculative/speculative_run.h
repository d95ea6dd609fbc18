// Decodes the same prompt plainly and with drafts, in engines that take turns, and counts what each
// did.
//
// Used by `sluice-lab speculative`. Thread rule: main thread, with no other load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/link.h"
#include "cli/bench/measure.h"
#include "lab/lists/recorded_lists.h"
#include "lab/speculative/cost_model.h"
#include "sluice/engine_options.h"
#include "sluice/inspect.h"

namespace sluice::lab {

// What every run of every row does.
struct SpeculativeWork {
  int32_t decode_tokens = 0;  // of a run at least; its last step may give more
  int32_t repeats = 0;        // runs of a row
  float temperature = 0;
  // Tokens of a text, from another place for each run; empty: random ids, the same for all runs.
  std::vector<int32_t> text;
  // Drafts read these in place of the pages that their policy chooses; empty: they choose.
  std::optional<RecordedLists> replay;
};

// Sums over the decode steps of some runs.
struct StepCounts {
  int64_t num_tokens = 0;
  int64_t num_steps = 0;         // plain decode steps, or verify passes
  int64_t num_draft_tokens = 0;  // in the drafts that were verified
  int64_t num_accepted = 0;      // of these
  double seconds = 0;
  double draft_seconds = 0;  // of these, in passes that draft
  double h2d_bytes = 0;      // KV loaded from host memory

  void add(const StepCounts& more);
  double tokens_per_step() const { return static_cast<double>(num_tokens) / num_steps; }
  double drafts_per_step() const { return static_cast<double>(num_draft_tokens) / num_steps; }
  StepTimes times() const;
};

// One configuration, and after the runs its result.
struct SpeculativeRow {
  int64_t context_tokens = 0;
  bool is_plain = false;              // decodes with full attention, one token a step
  std::optional<int32_t> num_drafts;  // k; empty: plain, or chosen by the engine
  std::optional<double> forced;       // acceptance; empty: plain, or what the verify pass says
  cli::Spread tokens_per_second;
  StepCounts counts;  // of all runs
};

// Rows that share an engine, one after the other.
struct SpeculativeGroup {
  EngineOptions engine;
  std::vector<SpeculativeRow> rows;
};

// Completes the options of all groups for one request, then measures every row: half of the repeats
// from the first group to the last, the others from the last to the first. An engine computes a
// prompt once and finds it in the prefix cache from then on. The link is measured before and after,
// without an engine; returns the larger rates. Errors: those of LLM and of replay_bytes;
// Interrupted.
cli::LinkRates measure_groups(const SpeculativeWork& work, const ModelSummary& model,
                              std::vector<SpeculativeGroup>* groups);

}  // namespace sluice::lab
