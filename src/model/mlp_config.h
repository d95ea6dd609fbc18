// The MLPs of a model's layers, as config.json describes them.
//
// Used by model_config.cc alone. Thread rule: a free function without state.
#pragma once

#include <cstdint>
#include <vector>

#include "io/json.h"
#include "model/layer_spec.h"
#include "model/model_config.h"

namespace sluice {

// One for each of `num_layers` layers: dense ones, or mixtures of experts.
// Errors: kModel naming key and range; kUnsupported naming a setting of the router that changes
// results and is not implemented.
std::vector<Mlp> read_mlps(const JsonObject& config, Architecture architecture, int32_t num_layers);

}  // namespace sluice
