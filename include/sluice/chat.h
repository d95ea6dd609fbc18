// A conversation as LLM::chat_prompt takes it.
//
// Used by LLM and by the tokenizer's chat templates. Thread rule: values only.
#pragma once

#include <string>

namespace sluice {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ChatOptions {
  bool enable_thinking = true;  // Qwen3; others ignore it
  std::string date;  // "26 Jul 2024", for templates that print one (Llama 3.1); "": their own
};

}  // namespace sluice
