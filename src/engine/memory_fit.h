// memory_fit: whether a plan fits, and what to change when it does not.
//
// Used by engine_plan.cc once all entries of a plan are there. Thread rule: pure functions.
#pragma once

#include <cstddef>

#include "engine/engine_plan.h"

namespace sluice {

inline bool offloads(const EnginePlan& plan) { return plan.kv_offload != KvOffload::kOff; }

double gibibytes(size_t bytes);

// Sets fits and remedy, and takes max_model_len back to what the KV cache holds. `fixed_bytes` is
// what the device needs beside KV.
void judge_fit(const EngineOptions& options, size_t fixed_bytes, EnginePlan& plan);

// As judge_fit, for what only offloaded KV can lack: host memory, and room for the ring.
void judge_offload_fit(size_t summary_bytes, EnginePlan& plan);

}  // namespace sluice
