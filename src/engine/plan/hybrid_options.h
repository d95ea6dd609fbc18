// What an engine of a hybrid model does not have yet, how many sequences its states are for, and
// how many snapshots of them are kept.
//
// The first step of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/engine_plan.h"
#include "engine/plan/plan_input.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"

namespace sluice {

// The options as an engine of the model follows them; unchanged unless the model has states:
// max_num_seqs is as many as have states in `default_bytes`, unless it is given, with a line in
// `notes`. Errors: kUnsupported for KV events, with a remedy; kInvalidArgument for options of
// snapshots that a model without states has no use for, or an engine without prefix cache.
EngineOptions settle_hybrid_options(const EngineOptions& options, const ModelConfig& config,
                                    size_t default_bytes, std::vector<std::string>& notes);

// Snapshots of a plan whose other sizes are chosen: as many as state_cache_bytes has room for, else
// as requests can use, within a share of the memory and of what the plan leaves; none without
// prefix cache. Reads num_blocks, kv_layout, passes and memory of `plan`.
SnapshotSizes choose_snapshots(const PlanInput& input, const EnginePlan& plan);

// Turns prefix caching off where no snapshot has room, with a note. Errors: kInvalidArgument for a
// KV store then.
void settle_prefix_caching(const EngineOptions& options, const StateLayout& states,
                           EnginePlan& plan);

}  // namespace sluice
