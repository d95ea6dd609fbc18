// Architecture: the families of models, by the names that config.json has for them.
//
// Part of ModelConfig. Thread rule: values and free functions without state.
#pragma once

#include <string_view>

#include "io/json.h"

namespace sluice {

enum class Architecture {
  kQwen3,
  kQwen2,
  kLlama,
  kQwen3Moe,
  kQwen2Moe,
  kMixtral,
  kQwen35,
  kQwen35Moe,
  kQwen3Next
};

// The name in config.json's `architectures`: "Qwen3ForCausalLM".
std::string_view architecture_name(Architecture architecture);

// Whether layers may be mixtures of experts.
bool has_experts(Architecture architecture);

// Whether layers of the gated delta rule lie between those with attention.
bool is_hybrid(Architecture architecture);

// The family of the model: from `architectures` if the file has that key, else from `model_type`.
// Errors: kUnsupported for several architectures or an unknown one.
Architecture read_architecture(const JsonObject& config);

}  // namespace sluice
