// ChatTemplate: writes a conversation as the model's own Jinja template does.
//
// Used by LLM::chat_prompt, `sluice tokenize` and the checks before a model is loaded. Parsed once;
// the result is what transformers' apply_chat_template gives. Thread rule: immutable; any number of
// threads may call one object at the same time.
#pragma once

#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sluice/chat.h"
#include "tokenizer/chat_messages.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace sluice {

// A conversation with everything that OpenAI's chat API has: its JSON, as a client sends it.
struct ChatInput {
  // A list of messages: role (system, developer, user, assistant, tool) and content (a text, null,
  // or a list of {"type": "text", "text": ...}); tool_calls, reasoning_content and other members
  // as the template reads them.
  const nlohmann::ordered_json& messages;
  const nlohmann::ordered_json* tools = nullptr;            // a list of objects
  const nlohmann::ordered_json* template_kwargs = nullptr;  // an object; see kwargs()
  // The text ends where the answer begins.
  bool add_generation_prompt = true;
  // The text ends with the last message's content, which the model then continues.
  bool continue_final_message = false;
  // The local time, which some templates print. Without one strftime_now is undefined.
  const std::tm* now = nullptr;
};

class ChatTemplate {
 public:
  // Parses a model's template, "" if it has none. A template that cannot be used is no error: the
  // model still completes texts. `special_tokens` are variables of the template.
  ChatTemplate(std::string_view jinja, const SpecialTokens& special_tokens);

  // Why render would fail: there is no template, or it has a construct outside of the subset, with
  // its line. Empty: the template can be used.
  const std::string& problem() const { return problem_; }
  // Errors: kUnsupported with problem().
  void require() const;

  // What the template can be given in template_kwargs: the variables that it reads and that a
  // request does not set in another way. Sorted.
  const std::vector<std::string>& kwargs() const { return kwargs_; }
  bool reads(std::string_view variable) const;

  // The conversation as segments. All text of the input is in segments that do not parse special
  // tokens. The text has its BOS: encode it without adding one.
  //
  // Every answer can be sent back. Before the template sees the messages:
  // - developer becomes system; reasoning_content, thinking and reasoning are all given where one
  // is;
  // - a content that is missing or null, and the text of a part that is null, become "";
  // - parts are joined by line ends where the template takes no lists of parts;
  // - arguments of calls become call_arguments(), and those that stay a text {"arguments": text}
  //   where it takes no text;
  // - several calls of a message become messages with one each, before its result, where it takes
  //   one;
  // - an answer without text and calls becomes " " where it refuses "".
  //
  // Errors: kUnsupported as require(). kInvalidArgument that names the place in the input: no
  // messages, unknown roles, parts that are no text, tools for a template that does not read them,
  // variables that it does not read, both add_generation_prompt and continue_final_message; and
  // what the template itself refuses, with its line.
  std::vector<TextSegment> render(const ChatInput& input) const;

  // The same for texts alone. Errors: also kInvalidArgument for options that are not an object.
  std::vector<TextSegment> render(std::span<const ChatMessage> messages, const ChatOptions& options,
                                  const std::tm* now) const;

  // The same for the text of a JSON list. Errors: also kInvalidArgument for a text that is no JSON.
  std::vector<TextSegment> render_json(std::string_view messages, const ChatOptions& options,
                                       const std::tm* now) const;

  // Checks the options as render would. Errors: those of render.
  void check(const ChatOptions& options) const;

 private:
  nlohmann::ordered_json to_kwargs(const ChatOptions& options) const;
  std::vector<TextSegment> render_list(const nlohmann::ordered_json& messages,
                                       const ChatOptions& options, const std::tm* now) const;
  void check_kwargs(const nlohmann::ordered_json& kwargs) const;
  TemplateForms probe_forms() const;
  // Whether the template writes a part of a message of this role as it writes the same text.
  bool probe_parts(std::string_view role) const;
  // Whether the template writes all of `texts` in a prompt with these messages.
  bool writes(const nlohmann::ordered_json& messages,
              const std::vector<std::string_view>& texts) const;
  std::vector<TextSegment> run(const nlohmann::ordered_json& given, bool add_generation_prompt,
                               const std::tm* now) const;

  std::optional<jinja::Template> template_;
  std::string problem_;
  SpecialTokens special_tokens_;
  std::vector<std::string> kwargs_;
  TemplateForms forms_;
};

// The template of a model, or of `file` if that is not empty.
//
// Errors: for a file kUnsupported if it cannot be used, naming it, and kModel if it cannot be read.
ChatTemplate load_chat_template(const TokenizerConfig& config, const std::string& file);

// The time for ChatInput::now.
std::tm local_time();

}  // namespace sluice
