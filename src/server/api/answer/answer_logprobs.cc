#include "server/api/answer/answer_logprobs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastLogprob = -9999.0;

// The likeliest tokens of an entry, at most `num_top`.
size_t top_end(const LogprobEntry& entry, int32_t num_top) {
  return std::min(entry.size(), size_t{1} + static_cast<size_t>(num_top));
}

std::string id_name(int32_t id) { return fmt::format("token_id:{}", id); }

Json token_json(const Tokenizer& tokenizer, const TokenLogprob& token, TokenNames names) {
  Json bytes = Json::array();
  for (const char c : tokenizer.token_bytes(token.token_id)) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  Json json;
  json["token"] =
      names == TokenNames::kIds ? id_name(token.token_id) : token_text(tokenizer, token.token_id);
  json["logprob"] = json_logprob(token.logprob);
  json["bytes"] = std::move(bytes);
  return json;
}

// Of OpenAI's completions, whose lists have no bytes. The text has U+FFFD for what is no character.
std::string token_name(const Tokenizer& tokenizer, int32_t id, TokenNames names) {
  if (names == TokenNames::kIds) return id_name(id);
  const std::string_view bytes = tokenizer.token_bytes(id);
  std::string text = token_text(tokenizer, id);
  if (text == bytes) return text;
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

// The chosen token comes first, and again where it is among the likeliest.
Json top_map(const Tokenizer& tokenizer, const LogprobEntry& entry, int32_t num_top,
             TokenNames names) {
  Json map = Json::object();
  const auto chosen = entry.front().token_id;
  for (size_t i = 0; i < top_end(entry, num_top); ++i) {
    const int32_t id = entry[i].token_id;
    if (i > 0 && id == chosen) continue;
    std::string name = token_name(tokenizer, id, names);
    if (map.contains(name)) name = id_name(id);
    map[name] = json_logprob(entry[i].logprob);
  }
  return map;
}

}  // namespace

double json_logprob(float logprob) {
  if (std::isinf(logprob) && logprob < 0) return kLeastLogprob;
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), logprob);
  double value = logprob;
  if (error == std::errc()) std::from_chars(digits.data(), end, value);
  return value;
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return tokenizer.decode({&id, 1}, false);
}

int64_t count_code_points(std::string_view utf8) {
  return std::ranges::count_if(utf8, [](char c) { return (c & 0xC0) != 0x80; });
}

Json chat_logprob(const Tokenizer& tokenizer, const LogprobEntry& entry, int32_t num_top,
                  TokenNames names) {
  Json json = token_json(tokenizer, entry.front(), names);
  Json top = Json::array();
  for (size_t i = 1; i < top_end(entry, num_top); ++i) {
    top.push_back(token_json(tokenizer, entry[i], names));
  }
  json["top_logprobs"] = std::move(top);
  return json;
}

Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<LogprobEntry>& entries,
                          int32_t num_top) {
  Json list = Json::array();
  for (const LogprobEntry& entry : entries) {
    if (entry.empty()) {
      list.push_back(nullptr);
      continue;
    }
    Json map = Json::object();
    for (size_t i = 0; i < top_end(entry, num_top); ++i) {
      // The token itself comes first and again among the likeliest, where its rank is known.
      Json& slot = map[std::to_string(entry[i].token_id)];
      slot["logprob"] = json_logprob(entry[i].logprob);
      slot["rank"] = nullptr;
      if (i > 0) slot["rank"] = i;
      slot["decoded_token"] = token_text(tokenizer, entry[i].token_id);
    }
    list.push_back(std::move(map));
  }
  return list;
}

LegacyLogprobs::LegacyLogprobs(const Tokenizer& tokenizer, int32_t num_top, bool skip_special,
                               TokenNames names)
    : tokenizer_(&tokenizer),
      num_top_(num_top),
      names_(names),
      detokenizer_(tokenizer, skip_special) {}

Json LegacyLogprobs::empty() {
  Json lists;
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    lists[name] = Json::array();
  }
  return lists;
}

void LegacyLogprobs::append_prompt(const AnswerPrompt& prompt,
                                   const std::vector<LogprobEntry>& entries, Json& lists) {
  // The text of a prompt has its special tokens, whatever the answer's has.
  Detokenizer detokenizer(*tokenizer_, false);
  bool at_front = prompt.text.has_value();
  int64_t offset = 0;
  for (size_t i = 0; i < entries.size() && i < prompt.ids.size(); ++i) {
    const int32_t id = prompt.ids[i];
    offset_ = offset;
    append(id, entries[i], lists);
    at_front = at_front && tokenizer_->is_special(id) &&
               !prompt.text->starts_with(tokenizer_->token_bytes(id));
    if (!at_front) offset += count_code_points(detokenizer.push(id));
  }
  offset_ = prompt.text ? count_code_points(*prompt.text)
                        : offset + count_code_points(detokenizer.finish());
}

void LegacyLogprobs::append_answer(const std::vector<LogprobEntry>& entries, Json& lists) {
  for (const LogprobEntry& entry : entries) {
    const int32_t id = entry.front().token_id;
    append(id, entry, lists);
    offset_ += count_code_points(detokenizer_.push(id));
  }
}

void LegacyLogprobs::append(int32_t id, const LogprobEntry& entry, Json& lists) {
  lists["tokens"].push_back(token_name(*tokenizer_, id, names_));
  lists["text_offset"].push_back(offset_);
  if (entry.empty()) {
    lists["token_logprobs"].push_back(nullptr);
    lists["top_logprobs"].push_back(nullptr);
    return;
  }
  lists["token_logprobs"].push_back(json_logprob(entry.front().logprob));
  lists["top_logprobs"].push_back(top_map(*tokenizer_, entry, num_top_, names_));
}

}  // namespace sluice::api
