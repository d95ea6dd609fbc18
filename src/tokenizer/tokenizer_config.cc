// Reads tokenizer_config.json and chat_template.jinja.
#include "tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/json.h"
#include "io/model_file.h"

namespace sluice {
namespace {

using nlohmann::json;

// Source: transformers' SPECIAL_TOKENS_ATTRIBUTES, without the lists.
constexpr std::array<std::string_view, 7> kTokenNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// "<s>" or {"content": "<s>", ...}. REQUIRES: the key is there.
std::string token_content(const JsonObject& config, std::string_view key) {
  if (config.get(key).is_string()) return config.get_string(key);
  return config.get_object(key).get_string("content");
}

// The value is a template, or a list of named ones, of which "default" is the one for plain chat.
std::string template_text(const JsonObject& config) {
  constexpr std::string_view kKey = "chat_template";
  if (!config.has(kKey)) return {};
  const json& value = config.get(kKey);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) config.fail(kKey, "a string or a list of named templates");
  for (size_t i = 0; i < value.size(); ++i) {
    const JsonObject entry(value[i], fmt::format("{}: {}[{}]", config.name(), kKey, i));
    if (entry.get_string("name") == "default") return entry.get_string("template");
  }
  return {};
}

}  // namespace

bool is_special_token_name(std::string_view name) {
  return std::find(kTokenNames.begin(), kTokenNames.end(), name) != kTokenNames.end();
}

TokenizerConfig read_tokenizer_config(const std::filesystem::path& model_dir) {
  TokenizerConfig result;
  const std::filesystem::path path = model_dir / "tokenizer_config.json";
  if (model_file_exists(path)) {
    const json document = parse_json(read_model_file(path), path.string());
    const JsonObject config(document, path.string());
    result.chat_template = template_text(config);
    for (const std::string_view name : kTokenNames) {
      if (config.has(name)) result.special_tokens.emplace(name, token_content(config, name));
    }
  }
  // As in transformers, the separate file takes precedence.
  const std::filesystem::path jinja = model_dir / "chat_template.jinja";
  if (model_file_exists(jinja)) result.chat_template = read_model_file(jinja);
  return result;
}

}  // namespace sluice
