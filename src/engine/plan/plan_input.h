// PlanInput: all that a plan follows from.
//
// Passed to every step of engine_plan.cc. Thread rule: plain references.
#pragma once

#include <cstddef>
#include <vector>

#include "attention/policy_pair.h"
#include "device/device.h"
#include "device/host/host_memory.h"
#include "engine/plan/plan_traits.h"
#include "model/experts/expert_layer.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"

namespace sluice {

// Bytes of weights, once for all plans of a search, since models have many tensors.
struct WeightPlan {
  size_t device_bytes = 0;          // with all of them on the device
  size_t beside_experts_bytes = 0;  // of device memory, with experts in host memory
  size_t expert_bytes = 0;          // of pinned memory then
  std::vector<ExpertLayer> experts;
};

struct PlanInput {
  const EngineOptions& options;
  const ModelConfig& config;
  Device& device;
  const PolicyPair& policies;
  const HostMemory& host;
  const WeightPlan& weights;
  // The KV cache has room for one longest request, even past the default's cap. Set for "auto".
  bool for_longest = false;

  const PlanTraits& traits() const { return plan_traits(device.kind()); }
};

}  // namespace sluice
