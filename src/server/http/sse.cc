#include "server/http/sse.h"

#include <algorithm>

namespace sluice::http {

void append_sse_event(std::string& out, std::string_view name, std::string_view data) {
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  for (size_t at = 0; at <= data.size();) {
    const size_t end = std::min(data.find_first_of("\r\n", at), data.size());
    out.append("data: ").append(data.substr(at, end - at)).append("\n");
    const bool two = data.substr(end, 2) == "\r\n";
    at = end + (two ? 2 : 1);
  }
  out.append("\n");
}

void append_sse_comment(std::string& out, std::string_view text) {
  out.append(": ").append(text).append("\n\n");
}

bool StreamEvent::absorb(StreamEvent&) { return false; }

}  // namespace sluice::http
