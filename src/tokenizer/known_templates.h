// The chat templates that Sluice can write out, as whole programs.
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

// In the literals of a known program this stands for any text: the default system message or the
// default date. All such places of one template hold the same text.
inline constexpr char kAnyText = '@';

struct KnownTemplate {
  std::vector<JinjaToken> tokens;
  // What it writes; bos_token and the texts that kAnyText stands for are still empty.
  std::variant<ChatMlFormat, Llama3Format> format;
};

const std::vector<KnownTemplate>& known_templates();

}  // namespace sluice
