// PlanInput: all that a plan follows from.
//
// Passed to every step of engine_plan.cc. Thread rule: plain references.
#pragma once

#include "attention/policy_pair.h"
#include "device/device.h"
#include "device/host/host_memory.h"
#include "engine/plan/plan_traits.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "sluice/engine_options.h"

namespace sluice {

struct PlanInput {
  const EngineOptions& options;
  const ModelConfig& config;
  Device& device;
  const PolicyPair& policies;
  const HostMemory& host;
  const Weights::Plan& weights;  // once for all plans of a search: models have many tensors
  // The KV cache has room for one longest request, even past the default's cap. Set for "auto".
  bool for_longest = false;

  const PlanTraits& traits() const { return plan_traits(device.kind()); }
};

}  // namespace sluice
