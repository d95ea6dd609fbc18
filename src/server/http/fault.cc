#include "server/http/fault.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

namespace sluice::http {
namespace {

struct Status {
  int code;
  std::string_view reason;
  std::string_view type;  // empty: not an error
  bool closes;            // the connection cannot, or should not, go on
};

constexpr std::array kStatuses = {
    Status{200, "OK", "", false},
    Status{204, "No Content", "", false},
    Status{304, "Not Modified", "", false},
    Status{400, "Bad Request", "BadRequestError", false},
    Status{401, "Unauthorized", "AuthenticationError", false},
    Status{403, "Forbidden", "PermissionDeniedError", false},
    Status{404, "Not Found", "NotFoundError", false},
    Status{405, "Method Not Allowed", "MethodNotAllowed", true},
    Status{408, "Request Timeout", "RequestTimeout", true},
    Status{411, "Length Required", "LengthRequired", true},
    Status{413, "Content Too Large", "PayloadTooLarge", true},
    Status{414, "URI Too Long", "UriTooLong", true},
    Status{415, "Unsupported Media Type", "UnsupportedMediaType", true},
    Status{417, "Expectation Failed", "BadRequestError", true},
    Status{429, "Too Many Requests", "RateLimitError", false},
    Status{431, "Request Header Fields Too Large", "HeadersTooLarge", true},
    Status{500, "Internal Server Error", "InternalServerError", false},
    Status{503, "Service Unavailable", "ServiceUnavailableError", false},
};

const Status* find_status(int code) {
  const auto* found = std::find_if(kStatuses.begin(), kStatuses.end(),
                                   [code](const Status& status) { return status.code == code; });
  return found == kStatuses.end() ? nullptr : found;
}

}  // namespace

std::string_view fault_type(int status) {
  const Status* found = find_status(status);
  if (found != nullptr && !found->type.empty()) return found->type;
  return status >= 500 ? "InternalServerError" : "BadRequestError";
}

std::string_view status_reason(int status) {
  const Status* found = find_status(status);
  return found == nullptr ? "Status" : found->reason;
}

std::string fault_body(const Fault& fault, std::string_view /*request_id*/) {
  nlohmann::ordered_json error;
  error["message"] = fault.message;
  error["type"] = fault_type(fault.status);
  error["param"] = nullptr;
  if (!fault.param.empty()) error["param"] = fault.param;
  error["code"] = fault.status;
  if (const auto& context = fault.context_length) {
    error["context_length"] = {{"limit", context->limit},
                               {"prompt_tokens", context->prompt_tokens},
                               {"max_tokens", context->max_tokens}};
  }
  nlohmann::ordered_json document;
  document["error"] = std::move(error);
  // A message may quote bytes of the client that are not UTF-8.
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Answer fault_answer(const Fault& fault, FaultBody body, std::string_view request_id) {
  const Status* known = find_status(fault.status);
  return {.status = fault.status,
          .fields = fault.fields,
          .body = body(fault, request_id),
          .close = fault.close || (known != nullptr && known->closes)};
}

}  // namespace sluice::http
