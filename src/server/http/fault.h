// Fault: an answer that is an error, in the shape that OpenAI's clients read.
//
// Made by the readers, the router and handlers; written by fault_answer. Thread rule: values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace sluice::http {

struct Fault {
  int status = 400;           // 4xx or 5xx
  std::string message;        // names the thing, the value and the remedy
  std::string param;          // the field of the request that is wrong; empty: null
  std::vector<Field> fields;  // further headers, such as Allow and Retry-After
  bool close = false;         // close the connection; some statuses always do
};

// {"error": {"message", "type", "param", "code"}} with the fault's headers. The answer closes the
// connection when the fault says so, and for 405, 408, 411, 413, 414, 415 and 431.
Answer fault_answer(const Fault& fault);

// "NotFoundError" for 404. A status without a name of its own has that of 400 or of 500.
std::string_view fault_type(int status);

// "Not Found" for 404; "Status" for one that this server does not send.
std::string_view status_reason(int status);

}  // namespace sluice::http
