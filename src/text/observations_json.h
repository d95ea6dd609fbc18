// JSON of observations (sluice/observations.h), of the engine and of one request.
//
// Printed by `run --json`; returned by the Python package. Thread rule: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sluice/observations.h"
#include "sluice/request_output.h"

namespace sluice {

// All counts, unknown densities and what there is not as null.
nlohmann::ordered_json observations_json(const Observations& observations);

// All that the audit says of a request's own prefill, over layers.
nlohmann::ordered_json request_mass_json(const RequestOutput& output);

// The counts of drafts, of a request or of all.
nlohmann::ordered_json speculation_json(const SpeculationCounts& counts);

// Of passes with drafts; 0 without one.
double tokens_per_verify(const SpeculationCounts& counts);

}  // namespace sluice
