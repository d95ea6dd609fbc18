// Text and JSON of observations (sluice/observations.h).
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sluice/observations.h"

namespace sluice::cli {

// For each phase a line of totals and a table by layer, in which consecutive equal layers share a
// row. No final newline.
std::string observations_table(const Observations& observations);

// All counts, unknown densities as null. Part of `run --json`.
nlohmann::ordered_json observations_json(const Observations& observations);

}  // namespace sluice::cli
