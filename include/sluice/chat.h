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
  // False asks for an answer without thoughts. Templates that do not read enable_thinking, because
  // their models have no thoughts or always have them, are not asked.
  bool enable_thinking = true;
  // Variables of the template as a JSON object: {"date_string": "26 Jul 2024"}. "": none. A name
  // that the template does not read is an error.
  std::string template_kwargs = {};
  // Tools that the model may call, as a JSON list in the form of OpenAI's API. "": none.
  std::string tools = {};
  // At most one of these is true: the prompt ends where an answer begins, or with the content of
  // the last message, which the model then goes on with.
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

}  // namespace sluice
