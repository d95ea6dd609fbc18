// The sampling parameters that a model's generation_config.json suggests.
//
// Used by LLM and by the service. Thread rule: free function.
#pragma once

#include "model/model_config.h"
#include "sluice/sampling_params.h"

namespace sluice {

// The suggestions over SamplingParams' own defaults.
SamplingParams sampling_defaults(const GenerationDefaults& defaults);

}  // namespace sluice
