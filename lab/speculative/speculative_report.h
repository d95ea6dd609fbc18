// The results of sluice-lab speculative as a table and JSON, each row beside plain decode and
// beside the cost model. Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lab/speculative/speculative_run.h"

namespace sluice::lab {

// What the cost model says of a row: by the forced acceptance, or by the one that fits the tokens
// of its steps, and by its measured times.
struct SpeculativeModel {
  double acceptance = 0;
  double tokens_per_step = 0;
  double tokens_per_second = 0;
};

// Empty for plain decode. Drafts of changing length count by their mean.
std::optional<SpeculativeModel> model_of(const SpeculativeRow& row);

// A line for each row.
std::string speculative_table(const std::vector<SpeculativeGroup>& groups,
                              const cli::LinkRates& link);

// One object per row; null where something does not apply.
nlohmann::ordered_json speculative_json(const std::vector<SpeculativeGroup>& groups,
                                        const cli::LinkRates& link);

}  // namespace sluice::lab
