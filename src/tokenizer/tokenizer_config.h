// The settings of a model's tokenizer outside tokenizer.json: chat template and BOS token.
//
// Used by Tokenizer::load. Thread rule: values only.
#pragma once

#include <filesystem>
#include <string>

namespace sluice {

struct TokenizerConfig {
  std::string chat_template;  // Jinja text; empty when the model has none
  std::string bos_token;      // its content; empty when not named
};

// Reads tokenizer_config.json and chat_template.jinja, which newer checkpoints have and whose
// template takes precedence. A directory without either gives an empty config.
//
// Errors: kModel naming file and field for a wrong type, and naming a file that cannot be read.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& model_dir);

}  // namespace sluice
