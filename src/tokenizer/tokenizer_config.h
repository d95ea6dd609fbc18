// The settings of a model's tokenizer outside tokenizer.json: chat template and special tokens.
//
// Used by Tokenizer::load. Thread rule: values only.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace sluice {

// The contents of the named special tokens ("bos_token": "<s>"), as chat templates read them. Those
// that a model does not name are absent.
using SpecialTokens = std::map<std::string, std::string>;

// Whether a special token can have this name.
bool is_special_token_name(std::string_view name);

struct TokenizerConfig {
  std::string chat_template;  // Jinja text; empty when the model has none
  SpecialTokens special_tokens;
};

// Reads tokenizer_config.json and chat_template.jinja, which newer checkpoints have and whose
// template takes precedence. A directory without either gives an empty config.
//
// Errors: kModel naming file and field for a wrong type, and naming a file that cannot be read.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& model_dir);

}  // namespace sluice
