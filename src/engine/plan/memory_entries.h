// memory_entries: the lines of the memory plan, from sizes that are chosen already.
//
// One step of engine_plan.cc, which also asks it what a plan without KV blocks takes; ranks prepare
// their ops by op_needs. Thread rule: pure functions.
#pragma once

#include <vector>

#include "engine/plan/engine_plan.h"
#include "engine/plan/plan_input.h"
#include "ops/op_needs.h"
#include "sluice/inspect.h"

namespace sluice {

// All that an engine of this plan allocates, in the order in which it is printed: what every plan
// has, KV, summaries. Parts of 0 bytes are left out. Reads kv_layout, kv_offload, num_blocks,
// passes, policies, offloaded and snapshots of `plan`.
std::vector<MemoryPlanEntry> memory_entries(const PlanInput& input, const EnginePlan& plan);

// What the ops of such an engine must have memory for.
OpNeeds op_needs(const ModelConfig& config, const EnginePlan& plan, const PolicyPair& policies);

}  // namespace sluice
