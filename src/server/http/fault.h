// Fault: an answer that is an error, in the shape that the clients of its route read.
//
// Made by the readers, the router and handlers; written by fault_answer. Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace sluice::http {

// Of a request that does not fit: clients shorten their prompt by it.
struct ContextLength {
  int64_t limit = 0;
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
};

// In counts and logs, as in those of nginx: the client left before its answer was complete, or was
// cut because it read too slowly. Never sent.
inline constexpr int kClientClosedRequest = 499;

struct Fault {
  int status = 400;     // 4xx or 5xx
  std::string message;  // names the thing, the value and the remedy
  std::string param;    // the field of the request that is wrong; empty: null
  std::optional<ContextLength> context_length;
  std::vector<Field> fields;  // further headers, such as Allow and Retry-After
  bool close = false;         // close the connection; some statuses always do
};

// Writes the body of a fault as the clients of one API expect it. `request_id`: X-Request-Id of the
// answer. Any thread calls it. It must not throw, whatever bytes the message has: those that are
// not UTF-8 become U+FFFD.
using FaultBody = std::string (*)(const Fault& fault, std::string_view request_id);

// OpenAI's: {"error": {"message", "type", "param", "code"}}, with "context_length" in it where the
// fault has one. "code" is a text of OpenAI's, or null. Streams send it as an event.
std::string fault_body(const Fault& fault, std::string_view request_id = {});

// The body with the fault's headers. The answer closes the connection when the fault says so, and
// for 405, 408, 411, 413, 414, 415 and 431.
Answer fault_answer(const Fault& fault, FaultBody body = fault_body,
                    std::string_view request_id = {});

// "NotFoundError" for 404. A status without a name of its own has that of 400 or of 500.
std::string_view fault_type(int status);

// "Not Found" for 404; "Status" for one that this server does not send.
std::string_view status_reason(int status);

}  // namespace sluice::http
