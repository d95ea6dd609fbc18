// The bytes of answers: heads, and the chunks of streams.
//
// Used by Connection. Thread rule: free functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace sluice::http {

struct AnswerHead {
  int status;
  std::string_view content_type;
  const std::vector<Field>& fields;
  const std::vector<Field>& more_fields;
  std::string_view request_id;
  // Of the body; none: a stream. Of a 304 it is not written, since it would have to be the page's.
  std::optional<size_t> length;
  bool chunked = false;  // the stream is framed; else the connection's end is its end
  bool close = false;
};

// Appends the head with its empty line. Control bytes in values become spaces, so that no value can
// begin another header.
void append_head(std::string& out, const AnswerHead& head);

// Appends `data` as one chunk; nothing if it is empty, since an empty chunk ends the body.
void append_chunk(std::string& out, std::string_view data);

inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace sluice::http
