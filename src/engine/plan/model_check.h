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

// The configuration that loading follows: read_model_config's, corrected by the weights where they
// contradict it (model/output_head.h). Without weights, or if they cannot be opened, it is not
// corrected: loading them reports that. Errors: those of read_model_config.
ModelConfig read_config_for_weights(const EngineOptions& options, const ModelDirectory& directory);

// Adds the end token that the tokenizer names to config.eos_ids, and returns a warning for each
// contradiction: ids that the embedding lacks, end tokens that can never come, no end token at all,
// a BOS or EOS that tokenizer_config.json wants and tokenizer.json does not add, or the reverse,
// and two different chat templates.
//
// vLLM ends an answer at the tokenizer's eos_token and at generation_config.json's ids,
// transformers at the latter or else at config.json's. The union costs nothing where they agree;
// where they do not, an answer that ran to max_tokens is worse than one that ends at a token which
// one of the files calls its end. Errors: kModel for more than kMaxEosIds end tokens.
std::vector<std::string> reconcile_tokenizer(const Tokenizer& tokenizer, ModelConfig& config);

}  // namespace sluice
