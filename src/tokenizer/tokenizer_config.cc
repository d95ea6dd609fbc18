// Reads tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
#include "tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "io/gguf/gguf_model.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/model_file.h"
#include "tokenizer/gguf_tokenizer.h"

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

// Adds the special tokens of a file that are not there yet.
void add_special_tokens(const JsonObject& file, SpecialTokens& tokens) {
  for (const std::string_view name : kTokenNames) {
    if (file.has(name)) tokens.emplace(name, token_content(file, name));
  }
}

// Calls take(object) with the contents of a JSON file, if it is there.
template <typename Take>
void read_if_present(const std::filesystem::path& path, Take take) {
  if (!model_file_exists(path)) return;
  const json document = parse_json(read_model_file(path), path.string());
  take(JsonObject(document, path.string()));
}

}  // namespace

bool is_special_token_name(std::string_view name) {
  return std::find(kTokenNames.begin(), kTokenNames.end(), name) != kTokenNames.end();
}

TokenizerConfig read_tokenizer_config(const std::filesystem::path& model_dir) {
  if (is_gguf(model_dir)) return read_gguf_tokenizer_config(GgufFile(model_dir));
  TokenizerConfig result;
  bool names_added_tokens = false;  // then transformers reads no special_tokens_map.json
  read_if_present(model_dir / "tokenizer_config.json", [&](const JsonObject& config) {
    names_added_tokens = config.has("added_tokens_decoder");
    result.chat_template = template_text(config);
    add_special_tokens(config, result.special_tokens);
    result.add_bos_token = config.find_bool("add_bos_token");
    result.add_eos_token = config.find_bool("add_eos_token");
  });
  if (!names_added_tokens) {
    read_if_present(model_dir / "special_tokens_map.json",
                    [&](const JsonObject& map) { add_special_tokens(map, result.special_tokens); });
  }
  // As in transformers, the separate file takes precedence.
  const std::filesystem::path jinja = model_dir / "chat_template.jinja";
  if (model_file_exists(jinja)) {
    std::string separate = read_model_file(jinja);
    result.has_two_templates = !result.chat_template.empty() && result.chat_template != separate;
    result.chat_template = std::move(separate);
  }
  return result;
}

}  // namespace sluice
