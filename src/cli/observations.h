// Text and JSON of observations (sluice/observations.h), of the engine and of one request.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sluice/observations.h"
#include "sluice/request_output.h"

namespace sluice::cli {

// For each phase a line of totals and a table by layer, in which consecutive equal layers share a
// row. No final newline.
std::string observations_table(const Observations& observations);

// All counts, unknown densities and what there is not as null. Part of `run --json`.
nlohmann::ordered_json observations_json(const Observations& observations);

// What the audit says of a request's own prefill, over layers: a line that begins with "captured",
// or nothing if it measured no row; and all of it.
std::string request_mass_line(const RequestOutput& output);
nlohmann::ordered_json request_mass_json(const RequestOutput& output);

// The counts of drafts, of a request or of all; the line is empty without a draft.
std::string speculation_line(const SpeculationCounts& counts);
nlohmann::ordered_json speculation_json(const SpeculationCounts& counts);

}  // namespace sluice::cli
