// ChatTemplate: writes a conversation in the format that the model was trained on.
//
// Used by LLM::chat_prompt. Jinja is not executed (jinja/template.h can): the templates of the
// supported families are recognised as a whole (known_templates.h) and implemented in C++; any
// other template is refused. Thread rule: immutable.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/chat.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// <|im_start|>role\ncontent<|im_end|>\n : Qwen1.5 to Qwen3, SmolLM2.
struct ChatMlFormat {
  // Written first when the conversation does not begin with a system message.
  std::optional<std::string> default_system;
  // Qwen3: thoughts in answers before the last question are left out; the white space around later
  // ones is normalized.
  bool edits_thoughts = false;
  // Qwen3: ChatOptions::enable_thinking = false starts the answer with an empty thought.
  bool thinking_switch = false;
  // Qwen3-Thinking: the answer always starts inside a thought.
  bool opens_thought = false;
};

// <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|> : Llama 3.x.
struct Llama3Format {
  std::string bos_token;  // empty when the template writes none
  // Llama 3.1 and later: a system part with two dates is always written, with or without a system
  // message.
  bool dated_system = false;
  std::string default_date;   // the template's own, for an empty ChatOptions::date
  bool prints_today = false;  // see ChatTemplate::prints_today
  // The first release of Llama 3: the header of the answer is written even without
  // add_generation_prompt.
  bool always_prompts = false;
};

class ChatTemplate {
 public:
  // Recognises a template. `bos_token` is the value of {{ bos_token }} in it.
  //
  // Errors: kUnsupported if there is no template or it is not a known one, naming the first
  // difference; kModel if it needs a BOS token and there is none.
  ChatTemplate(std::string_view jinja, std::string_view bos_token);

  // The conversation as segments; those with the messages' contents do not parse special tokens.
  //
  // With `add_generation_prompt` the text ends where the assistant's answer begins. An empty
  // options.date takes the template's own date. The text has its BOS: encode it without adding.
  // Errors: kInvalidArgument for no messages or a role other than system, user and assistant.
  std::vector<TextSegment> render(std::span<const ChatMessage> messages, const ChatOptions& options,
                                  bool add_generation_prompt = true) const;

  // Whether the template prints today's date if it is given none (Llama 3.2). The caller then sets
  // ChatOptions::date, as in "26 Jul 2024", since this class does not read the clock.
  bool prints_today() const;

 private:
  std::variant<ChatMlFormat, Llama3Format> format_;
};

}  // namespace sluice
