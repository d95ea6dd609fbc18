// The token mixers of a model's layers, as config.json describes them: attention, and the gated
// delta rule of hybrids.
//
// Used by model_config.cc alone. Thread rule: a free function without state.
#pragma once

#include <cstdint>
#include <vector>

#include "io/json.h"
#include "model/layer_spec.h"
#include "model/model_config.h"

namespace sluice {

// One for each of `num_layers` layers; all attention is alike, and so are all others. Reads
// architecture and hidden_size of `model`.
// Errors: kModel naming key and range; kUnsupported naming a setting that changes results and is
// not implemented.
std::vector<TokenMixer> read_mixers(const JsonObject& config, const ModelConfig& model,
                                    int32_t num_layers);

}  // namespace sluice
