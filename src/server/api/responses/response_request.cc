// The rules between the members of a body.
#include "server/api/responses/response_request.h"

#include <utility>

#include "server/api/request/body_reader.h"
#include "server/api/request/tool_choice.h"
#include "server/api/responses/response_fields.h"
#include "server/api/responses/response_input.h"
#include "server/api/responses/response_tools.h"

namespace sluice::api {
namespace {

// Tools before messages: a body with many large tools is refused before its input is copied.
void check_response(ResponseBody& body) {
  ResponseTools tools = read_tools(body.conversation.tools);
  body.conversation.tools = std::move(tools.functions);
  check_tools(body.conversation.tools);
  body.strict_tools = std::move(tools.strict);
  check_tool_choice(body);
  body.facts.tools = std::move(tools.told);
  body.facts.in_spaces = std::move(tools.in_spaces);
  body.skipped_tools = std::move(tools.skipped);

  body.conversation.messages = messages_of(body.input, body.instructions);
  if (body.conversation.messages.empty()) {
    refuse_field("input", "input has no message and no call; it must have one");
  }
  if (!body.instructions.empty()) body.facts.instructions = std::move(body.instructions);
  if (body.has_logprobs || body.facts.top_logprobs > 0) {
    body.params.logprobs = body.facts.top_logprobs;
  }
  body.facts.temperature = body.params.temperature;
  body.facts.top_p = body.params.top_p;
}

}  // namespace

Read<ResponseRequest> read_response(std::string_view body, const RequestRules& rules) {
  return read_body<ResponseRequest>(body, rules, response_fields(),
                                    body_with_defaults<ResponseBody>(rules), check_response);
}

}  // namespace sluice::api
