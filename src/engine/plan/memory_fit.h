// memory_fit: whether a plan fits, and why not.
//
// Used by engine_plan.cc once all entries of a plan are there; plan_search adds what to change.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "engine/plan/engine_plan.h"

namespace sluice {

double gibibytes(size_t bytes);

// "1 byte", "0.75 MiB", "14.2 GiB".
std::string readable_bytes(size_t bytes);

// Sets fits and, where it does not, the reason as `remedy`; takes max_model_len back to what the KV
// cache holds, with a warning. `shared`: the device's memory is the host's.
void judge_fit(const EngineOptions& options, bool shared, EnginePlan& plan);

}  // namespace sluice
