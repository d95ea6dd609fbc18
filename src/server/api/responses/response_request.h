// Requests of /v1/responses: the body as a chat, with what its answer repeats.
//
// Used by the route. The API keeps no conversations: each request has all of its own. Thread rule:
// values and pure functions.
#pragma once

#include <string_view>

#include "server/api/openapi.h"
#include "server/api/request/request.h"
#include "server/api/responses/response_facts.h"

namespace sluice::api {

struct ResponseRequest : ChatRequest {
  ResponseFacts facts;
};

// Errors: as the functions of request.h; also for what needs a server that keeps answers.
Read<ResponseRequest> read_response(std::string_view body, const RequestRules& rules);

// Its body, as the description of the API has it.
extern const BodyFacts kResponseBody;

}  // namespace sluice::api
