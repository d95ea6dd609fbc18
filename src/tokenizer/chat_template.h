// ChatTemplate: a conversation as the text that the model was trained on.
//
// Used by LLM::chat_prompt. Jinja is not executed: the programs of the supported families are known
// as wholes (known_templates.h) and written out by hand, and any other template is refused.
// Thread rule: immutable.
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
  // Qwen3: thoughts of answers before the last question are left out, later ones are laid out anew.
  bool edits_thoughts = false;
  // Qwen3: ChatOptions::enable_thinking = false starts the answer with an empty thought.
  bool thinking_switch = false;
  // Qwen3-Thinking: the answer always starts inside a thought.
  bool opens_thought = false;
};

// <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|> : Llama 3.x.
struct Llama3Format {
  std::string bos_token;  // empty when the template writes none
  // Llama 3.1 and later: the system part tells two dates, whether there is a system message or not.
  bool dated_system = false;
  std::string default_date;  // what the template says when it is given no date
  bool prints_today = false;
  // The first Llama 3: the header of the answer is written even when it is not asked for.
  bool always_prompts = false;
};

class ChatTemplate {
 public:
  // Recognises a template. `bos_token` is what {{ bos_token }} in it stands for.
  //
  // Errors: kUnsupported, naming the part that is not known, when there is no template or it is not
  // the whole program of a known one; kModel when it needs a BOS token and there is none.
  ChatTemplate(std::string_view jinja, std::string_view bos_token);

  // Writes the conversation out; segments made of contents do not parse special tokens.
  //
  // With `add_generation_prompt` the text ends where the assistant's answer begins. An empty
  // options.date takes the template's own date. The text has its BOS: encode it without adding.
  // Errors: kInvalidArgument for no messages or a role other than system, user and assistant.
  std::vector<TextSegment> render(std::span<const ChatMessage> messages, const ChatOptions& options,
                                  bool add_generation_prompt = true) const;

  // Whether the template asks for today's date when it is given none (Llama 3.2); the caller's
  // clock then belongs into ChatOptions::date as "26 Jul 2024".
  bool prints_today() const;

 private:
  std::variant<ChatMlFormat, Llama3Format> format_;
};

}  // namespace sluice
