// What the metadata of a GGUF file say of mixtures of experts and of a hybrid's layers, as
// config.json has it.
//
// Used by read_gguf_config. Thread rule: free functions without state.
#pragma once

#include "io/json_type.h"
#include "model/gguf/gguf_metadata.h"
#include "model/model_config.h"

namespace sluice {

// Adds sizes of the MLPs, dense or with experts. Errors: kModel and kUnsupported naming key or
// tensor.
void add_gguf_mlps(const GgufMetadata& metadata, nlohmann::json& config);

// Adds what only hybrids have: which layers attend, the heads of the others, the share of channels
// that rotates. Errors: those of add_gguf_mlps.
void add_gguf_hybrid(const GgufMetadata& metadata, nlohmann::json& config);

// Sets where linear layers of a file have their rows in another order than those of config.json.
void set_gguf_row_order(const GgufMetadata& metadata, ModelConfig& model);

}  // namespace sluice
