// The input of a request to /v1/responses, as the messages of a chat.
//
// Used by the reader of requests. Thread rule: pure functions.
#pragma once

#include <string>

#include "server/api/request/field.h"

namespace sluice::api {

// `input`: a text or a list of objects. `instructions`: may be empty.
//
// Instructions, and messages of system and developer before all others, are one system message,
// since many templates take no second. Items of the assistant that follow each other (reasoning,
// message, function_call) are one message: its texts and its thoughts are joined by line ends, then
// come its calls. A function_call_output is a message of the role tool with the name of its
// function. A content that is null is "".
//
// Errors: those of refuse_field, which name the item, for other types, roles and parts, and for
// arguments that call_arguments refuses.
Json messages_of(const Json& input, const std::string& instructions);

}  // namespace sluice::api
