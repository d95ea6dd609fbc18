// Errors of the messages API, as Anthropic's clients read them.
//
// The FaultBody of its routes, and the error event of its streams. Thread rule: a pure function.
#pragma once

#include <string>
#include <string_view>

#include "server/http/fault.h"

namespace sluice::api {

// {"type": "error", "error": {"type", "message"}, "request_id"}. A prompt that does not fit is said
// in the words that agents shorten their history by: "prompt is too long: P tokens > N maximum",
// where N is the longest prompt that leaves room for an answer.
std::string message_fault_body(const http::Fault& fault, std::string_view request_id);

}  // namespace sluice::api
