// model_check: checks of a model directory's files beside its configuration, before loading.
//
// LlmEngine loads its tokenizer through it; `sluice inspect` reports whether loading would succeed.
// The public entry points are in sluice/inspect.h. Thread rule: free functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/model_directory.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// True if the model's own tokenizer is used. False with skip_tokenizer_init, and for dummy weights
// without tokenizer.json; each byte is then a token.
bool brings_tokenizer(const EngineOptions& options, const ModelDirectory& directory);

// The model's tokenizer, or the byte tokenizer. Errors: those of Tokenizer::load; kModel if
// tokenizer.json is missing.
std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options,
                                          const ModelDirectory& directory);

// A warning if the tokenizer has ids that the embedding lacks; empty otherwise.
std::vector<std::string> check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config);

}  // namespace sluice
