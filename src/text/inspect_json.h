// JSON of what is known of a model before it is loaded.
//
// Printed by `sluice inspect --json`; returned by the Python package's inspect. Thread rule: pure
// functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sluice/inspect.h"

namespace sluice {

// All fields under "model", "files" and "plan", by their names in sluice/inspect.h.
nlohmann::ordered_json inspect_json(const ModelSummary& model, const ModelCheck& check,
                                    const MemoryPlan& plan);

}  // namespace sluice
