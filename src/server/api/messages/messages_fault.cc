#include "server/api/messages/messages_fault.h"

#include <fmt/format.h>

#include "io/json_type.h"
#include "server/api/answer/answer_body.h"

namespace sluice::api {
namespace {

// Clients decide by the status; what has no name of its own is the client's mistake or the
// server's.
std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string message_fault_body(const http::Fault& fault, std::string_view request_id) {
  nlohmann::ordered_json body;
  body["type"] = "error";
  body["error"]["type"] = type_of(fault.status);
  body["error"]["message"] = fault.message;
  if (const auto& context = fault.context_length) {
    body["error"]["message"] =
        fmt::format("prompt is too long: {} tokens > {} maximum", context->prompt_tokens,
                    context->limit - context->max_tokens);
  }
  body["request_id"] = request_id;
  return json_line(body);
}

}  // namespace sluice::api
