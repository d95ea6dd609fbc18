// How observations of KV offload are shown: a table and JSON.
//
// Used by run. Thread rule: pure functions.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sluice/observations.h"

namespace sluice::cli {

// A line of totals and a table by layer for each phase; layers in a row that are alike share a
// line.
std::string observations_table(const Observations& observations);

nlohmann::ordered_json observations_json(const Observations& observations);

}  // namespace sluice::cli
