// The table of the fields of /v1/responses.
//
// Used by response_request.cc, documents and tests. Thread rule: the table is immutable.
#pragma once

#include <string>

#include "io/json_type.h"
#include "server/api/request/request_fields.h"
#include "server/api/responses/response_request.h"

namespace sluice::api {

// A request, and what is only read once all of its members are known.
struct ResponseBody : ResponseRequest {
  Json input;
  std::string instructions;
  bool has_logprobs = false;  // include asks for them
};

const FieldTable<ResponseBody>& response_fields();

}  // namespace sluice::api
