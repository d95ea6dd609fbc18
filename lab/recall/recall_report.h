// The results of sluice-lab recall as tables, JSON and a picture. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "io/json_type.h"
#include "lab/recall/recall_measure.h"

namespace sluice::lab {

// Two tables: mass captured at each density, and what a coverage that was asked for gave. One of
// them is left out if nothing of its kind was asked.
std::string recall_tables(const RecallMeasure& measure);

// One entry for each method and ask, with the mass of every layer and query head.
nlohmann::ordered_json recall_json(const RecallMeasure& measure);

// A picture of the first table: a row for each method, a column for each density. `subtitle` says
// what was measured. REQUIRES: a density was asked for.
std::string recall_svg(const RecallMeasure& measure, const std::string& subtitle);

}  // namespace sluice::lab
