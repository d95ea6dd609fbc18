// model_check: what a model directory holds beside its configuration, looked at before loading.
//
// LlmEngine loads its tokenizer here, and `sluice inspect` asks whether that would work. The public
// entry points are in sluice/inspect.h. Thread rule: free functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/model_directory.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// Whether the model's own tokenizer is used. Dummy weights may go with a config alone; a byte is
// then a token.
bool brings_tokenizer(const EngineOptions& options, const ModelDirectory& directory);

// The model's tokenizer or the one of bytes. Errors: those of Tokenizer::load.
std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options,
                                          const ModelDirectory& directory);

// Warnings where tokenizer and embedding do not belong together; none when all is well.
std::vector<std::string> check_vocabulary(const Tokenizer& tokenizer, const ModelConfig& config);

}  // namespace sluice
