// The settings of a model's tokenizer outside tokenizer.json: chat template and special tokens.
//
// Used by Tokenizer::load. Thread rule: values only.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
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
  // Whether the file asks for them around a text. tokenizer.json decides; LLM warns if they differ.
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  // chat_template.jinja and tokenizer_config.json have different templates.
  bool has_two_templates = false;
};

// Reads tokenizer_config.json, chat_template.jinja, which newer checkpoints have and whose template
// takes precedence, and special_tokens_map.json, for special tokens that the first does not name:
// as in transformers only if it has no added_tokens_decoder, which older files lack. A directory
// without any gives an empty config. From a GGUF file: tokenizer.chat_template and
// tokenizer.ggml.*_token_id.
//
// Errors: kModel naming file and field for a wrong type, and naming a file that cannot be read.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& model_dir);

}  // namespace sluice
