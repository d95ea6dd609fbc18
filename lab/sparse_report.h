// The results of sluice-lab sparse as tables and JSON, each row beside "full". Thread rule: pure
// functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/bench/kv_run.h"

namespace sluice::lab {

// A phase of a row relative to "full" with the same prompts and the same place of KV. Empty where
// there is no such row, or where "full" moves nothing.
struct PhaseRatios {
  std::optional<double> speed;  // of the rates: 2 is twice as fast
  std::optional<double> bytes;  // over the link, in both directions
};

// REQUIRES: `row` has a result. `phase` is &KvResult::prefill or &KvResult::decode.
PhaseRatios ratios_to_full(const std::vector<cli::KvRow>& rows, const cli::KvRow& row,
                           cli::PhaseResult cli::KvResult::*phase);

// A table for prefill and one for decode, a line for each row with a result.
std::string sparse_tables(const std::vector<cli::KvRow>& rows, const cli::LinkRates& link);

// One object per row. Shares and ratios are null where they are not known.
nlohmann::ordered_json sparse_json(const std::vector<cli::KvRow>& rows, const cli::LinkRates& link);

}  // namespace sluice::lab
