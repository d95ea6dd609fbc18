// Requests of the messages API (Anthropic's): the bodies of /v1/messages and its count_tokens as
// the same checked values that a chat has.
//
// Used by the handlers of both routes. Beyond Anthropic's fields a request may have the sampling
// parameters and chat_template_kwargs of chats. Thread rule: pure functions.
#pragma once

#include <span>
#include <string_view>

#include "server/api/openapi.h"
#include "server/api/request/field.h"
#include "server/api/request/item_schemas.h"
#include "server/api/request/request.h"

namespace sluice::api {

// The request in the form of a chat: system prompt, messages and tools as a template reads them
// (messages_conversation.h). max_tokens 0 only computes the prompt; a last message of the assistant
// is continued. Without `thinking` the template's default counts.
//
// Errors: a Fault with status 400 that names the member, its value and what is allowed; also for a
// tool_choice other than auto and none.
Read<ChatRequest> read_messages(std::string_view body, const RequestRules& rules);

// The same without max_tokens, for the tokens of its prompt.
Read<ChatRequest> read_message_count(std::string_view body, const RequestRules& rules);

// The tables of /v1/messages and of its count_tokens, for documents and tests. They live as long as
// the program.
std::span<const OptionFacts> message_fields();
std::span<const OptionFacts> message_count_fields();
inline constexpr BodyFacts kMessageBody = {"MessageRequest", message_fields, kMessageRules};
inline constexpr BodyFacts kMessageCountBody = {"MessageCountRequest", message_count_fields,
                                                kMessageRules};

}  // namespace sluice::api
