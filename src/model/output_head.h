// The output head of weights that config.json ties to the embedding.
//
// Used where a configuration is read for loading or for a plan (engine/plan/model_check.h). Thread
// rule: a free function.
#pragma once

#include <string_view>

#include "io/model_directory.h"
#include "model/model_config.h"

namespace sluice {

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

// With tie_word_embeddings, and a head in the weights that differs from the embedding: unties the
// head and adds a warning. A fine-tuned head that was saved with the old setting would be lost
// otherwise, and every answer be wrong; transformers 5 decides the same. A head of another type
// counts as different. A head with the same bytes stays tied, which saves its memory.
//
// Cost: reads both tensors up to their first difference, so all of them if they are equal: 0.6 GB
// for Qwen3-0.6B, about 0.1 s from the page cache, where the load then finds the embedding.
// Errors: those of Checkpoint::tensor and of reading.
void untie_different_head(const Checkpoint& checkpoint, ModelConfig& config);

}  // namespace sluice
