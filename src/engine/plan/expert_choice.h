// Sizes of the memory through which offloaded experts reach the device, and what the link bounds.
//
// Steps of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/plan/engine_plan.h"
#include "engine/plan/plan_input.h"
#include "model/weights.h"

namespace sluice {

// Errors: kInvalidArgument for options of experts that the model does not have, or that stay on the
// device.
void check_expert_options(const EngineOptions& options, const Weights::Plan& weights);

// The ring, without a cache; no sizes if experts are on the device, as with weights_offload kAuto.
HostExpertSizes choose_ring(const PlanInput& input);

// Places of a cache beside the ring: what was asked for, else half of `bytes_left`; 0 if experts
// are on the device. Errors: kInvalidArgument for a cache that does not hold one row's experts.
int32_t choose_places(const PlanInput& input, size_t bytes_left);

// More places, if their number follows from the memory and `bytes_left` are still free.
int32_t grow_places(const PlanInput& input, const HostExpertSizes& sizes, size_t bytes_left);

// The memory of experts in host memory, by their sizes.
struct ExpertBytes {
  size_t ring = 0;
  size_t cache = 0;
  size_t cache_counts = 0;  // pinned
};
ExpertBytes expert_bytes(const PlanInput& input, const HostExpertSizes& sizes);

// What the sizes mean, and what the link bounds at a rate; 0: none is known.
void note_experts(const std::vector<ExpertLayer>& layers, double link_bytes_per_second,
                  EnginePlan& plan);

}  // namespace sluice
