// memory_fit: whether a plan fits into memory, and the reason if it does not.
//
// Used by engine_plan.cc when all entries of a plan are set; plan_search appends the option to
// change. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "engine/plan/engine_plan.h"

namespace sluice {

// For output with a unit of GiB.
double gibibytes(size_t bytes);

// "1 byte", "0.75 MiB", "14.2 GiB".
std::string readable_bytes(size_t bytes);

// The plan with its verdict: `fits` and, if false, the reason as `remedy`. max_model_len becomes
// what the KV cache holds, with a warning; a given max_model_len above that does not fit instead.
// `shared`: device memory is host memory.
EnginePlan judge_fit(const EngineOptions& options, bool shared, EnginePlan plan);

}  // namespace sluice
