// Prompts of requests: from checked values to the text and the ids that the model gets. A request
// and /tokenize use the same functions, so that both give the same ids.
//
// Used by the handlers of the routes; a long prompt takes tenths of a second. Errors: a Fault with
// status 400 that names the member as `param` where it is one, such as "messages[2].role". Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "server/api/request/request.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

// What turns prompts into ids. References outlive the call.
struct PromptTools {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat;
  std::tm now = {};  // local time, for templates that print the date
};

// chat_template_kwargs with what reasoning_effort asks for: "none" sets enable_thinking to false,
// any other value is reasoning_effort, each if the template reads it; and with enable_thinking of
// the conversation. What chat_template_kwargs has counts more. Errors: names that a request cannot
// give to this template.
Read<Json> template_variables(const Conversation& conversation, const ChatTemplate& chat);

// The conversation as the template writes it. Errors: those of template_variables and
// ChatTemplate::render.
Read<std::vector<TextSegment>> render_conversation(const Conversation& conversation,
                                                   const PromptTools& tools);

// The text of segments, for /apply-template.
std::string text_of(const std::vector<TextSegment>& segments);

// The ids of a conversation.
Read<std::vector<int32_t>> conversation_ids(const Conversation& conversation,
                                            bool add_special_tokens, const PromptTools& tools);

// The ids of a raw prompt; ids are given back as they are. No ids for an empty text.
Read<std::vector<int32_t>> input_ids(const PromptInput& input, const EncodeOptions& options,
                                     const Tokenizer& tokenizer);

// The ids of a /tokenize request.
Read<std::vector<int32_t>> ids_of(const TokenizeRequest& request, const PromptTools& tools);

}  // namespace sluice::api
