// The layout of KV that a plan takes.
//
// Used by engine_plan.cc. Thread rule: pure function.
#pragma once

#include "engine/plan/plan_input.h"
#include "kv/kv_layout.h"

namespace sluice {

// Errors: kInvalidArgument for a block size that does not work.
KvLayout choose_kv_layout(const PlanInput& input, KvOffload kv_offload);

}  // namespace sluice
