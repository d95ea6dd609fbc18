// Conversations of the messages API as the JSON of OpenAI's chats, which templates read.
//
// Used by the reader of requests. Errors of both functions: as those of refuse_field, with places
// such as "messages[2].content[0].text". Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "server/api/request/field.h"

namespace sluice::api {

// The system prompt, if it is not null, and the messages. REQUIRES: `messages` is a list of
// objects.
//
// - Blocks of text become parts, thoughts reasoning_content, tool_use a call. redacted_thinking and
//   text of a system prompt that begins with "x-anthropic-billing-header" are left out: the latter
//   changes with each request of an agent, which would find nothing in the prefix cache.
// - A tool_result becomes a message of its own with the role tool and the name of its tool.
// - Neighbours of one role become one message, as the API has it; templates may insist on turns.
// Blocks that are neither text nor those above are refused.
Json chat_messages(Json&& system, Json&& messages);

// Tools as functions. Types that run on Anthropic's servers, or whose schemas only its models know,
// are left out; `skipped` becomes their SkippedTypes, and `strict` gets the names of those that are
// strict. REQUIRES: a list of objects.
Json chat_tools(Json&& tools, std::string& skipped, std::vector<std::string>& strict);

}  // namespace sluice::api
