#include "server/http/fault.h"

#include <algorithm>
#include <array>

#include "io/json_type.h"

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
    Status{406, "Not Acceptable", "BadRequestError", false},
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

// The names of OpenAI's API, by which clients tell errors apart; empty: it has none.
std::string_view code_of(const Fault& fault) {
  if (fault.context_length) return "context_length_exceeded";
  if (fault.status == 401) return "invalid_api_key";
  if (fault.status == 404 && fault.param == "model") return "model_not_found";
  if (fault.status == 429) return "rate_limit_exceeded";
  return {};
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
  error["code"] = nullptr;
  if (const std::string_view code = code_of(fault); !code.empty()) error["code"] = code;
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
