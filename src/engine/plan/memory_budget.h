// What memory there is for an engine, before any of it is given out.
//
// The first step of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include "engine/plan/plan_input.h"
#include "sluice/inspect.h"

namespace sluice {

// Memory of device and host, and the share of the device that the engine may use; with notes about
// what limits it. No entries.
MemoryPlan find_memory_budget(const PlanInput& input);

}  // namespace sluice
