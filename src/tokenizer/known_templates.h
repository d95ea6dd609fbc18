// The chat templates that Sluice supports, as complete Jinja programs.
//
// Used by chat_format.cc. They come from the models: ChatML as many ship it, Qwen1.5, Qwen2,
// Qwen2.5, Qwen3 (its first release, the present one, and the Thinking and Instruct models),
// SmolLM2, and Llama 3, 3.1 and 3.2. Thread rule: made once, then read only.
#pragma once

#include <variant>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/jinja_lexer.h"

namespace sluice {

// A wildcard in the literals of a known program: the default system message or the default date.
// All wildcards of one template match the same text.
inline constexpr char kAnyText = '@';

struct KnownTemplate {
  std::vector<JinjaToken> tokens;
  // The format it writes. bos_token and the texts matched by kAnyText are empty; chat_format.cc
  // sets them.
  std::variant<ChatMlFormat, Llama3Format> format;
};

// All supported templates, lexed at the first call.
const std::vector<KnownTemplate>& known_templates();

}  // namespace sluice
