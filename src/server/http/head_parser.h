// parse_head: the head of a request, under rules stricter than those of the library that reads it.
//
// Two readers that disagree about where a request ends let a client smuggle a second request past
// the first reader. Therefore this one refuses everything that is ambiguous. Used by
// RequestReader. Thread rule: keeps no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/http/fault.h"
#include "server/http/limits.h"
#include "server/http/message.h"

namespace sluice::http {

enum class Framing { kNone, kLength, kChunked };

struct Head {
  Request request;
  bool keep_alive = true;  // HTTP/1.0 is always closed
  Framing framing = Framing::kNone;
  uint64_t body_bytes = 0;        // for kLength
  bool expects_continue = false;  // the client waits for "100 Continue" before it sends the body
};

// Parses the text from the request line to the empty line, both included. After an error `head` has
// what was read before it: with a path, the request's own, its fields and its id.
//
// Errors, all of which close the connection: 400 for a byte below 0x20 other than tab and CR LF, a
// CR or LF alone, a continued field, a target that is not a path, another version than 1.0 and 1.1,
// no Host or two, a Content-Length twice or not all digits, a Transfer-Encoding twice, with
// HTTP/1.0, with Content-Length or other than "chunked" alone, and all that Beast's parser
// refuses; 411 for POST, PUT and PATCH without a length; 413 for a length above the limit; 414 for
// a long target; 415 for a Content-Encoding; 417 for another Expect than 100-continue; 431 for too
// many fields.
std::optional<Fault> parse_head(std::string_view text, const Limits& limits, Head& head);

// A fault that closes the connection.
Fault closing_fault(int status, std::string message);

}  // namespace sluice::http
