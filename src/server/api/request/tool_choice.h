// tool_choice: which calls an answer may have, and which it must have.
//
// Used by the tables and readers of chats, responses and messages. Errors: as those of
// refuse_field. Thread rule: pure functions.
#pragma once

#include <string_view>

#include "server/api/request/field.h"
#include "server/api/request/request.h"

namespace sluice::api {

// The field of chats and responses.
OptionFacts tool_choice_facts();
// Its value: a word, a function, or a list of those that may be called. The function of chats is a
// member of its own, that of responses is not; both are taken on both.
void take_tool_choice(ChatRequest& request, const Json& value);

// Whether the functions that it names are among the tools; `place`: of the field that names them.
// REQUIRES: tools are read.
void check_tool_choice(const ChatRequest& request, std::string_view place = "tool_choice");

}  // namespace sluice::api
