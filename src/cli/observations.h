// Text of observations (sluice/observations.h), of the engine and of one request;
// text/observations_json.h has their JSON.
#pragma once

#include <string>

#include "sluice/observations.h"
#include "sluice/request_output.h"

namespace sluice::cli {

// For each phase a line of totals and a table by layer, in which consecutive equal layers share a
// row. No final newline.
std::string observations_table(const Observations& observations);

// What the audit says of a request's own prefill, over layers: a line that begins with "captured",
// or nothing if it measured no row.
std::string request_mass_line(const RequestOutput& output);

// The counts of drafts, of a request or of all; empty without a draft.
std::string speculation_line(const SpeculationCounts& counts);

}  // namespace sluice::cli
