#include "server/http/answer_text.h"

#include <ctime>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "server/http/fault.h"

namespace sluice::http {
namespace {

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    out += control ? ' ' : c;
  }
  out.append("\r\n");
}

}  // namespace

void append_head(std::string& out, const AnswerHead& head) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", head.status,
                 status_reason(head.status));
  append_field(out, "Date",
               fmt::format("{:%a, %d %b %Y %H:%M:%S GMT}", fmt::gmtime(std::time(nullptr))));
  append_field(out, "Content-Type", head.content_type);
  append_field(out, "X-Request-Id", head.request_id);
  for (const auto* fields : {&head.fields, &head.more_fields}) {
    for (const Field& field : *fields) append_field(out, field.name, field.value);
  }
  // RFC 9110, 8.6: a length in a 304 is that of the 200, and clients may believe it.
  if (head.length && head.status != 304) {
    append_field(out, "Content-Length", fmt::format("{}", *head.length));
  }
  if (head.chunked) append_field(out, "Transfer-Encoding", "chunked");
  if (head.close) append_field(out, "Connection", "close");
  out.append("\r\n");
}

void append_chunk(std::string& out, std::string_view data) {
  if (data.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", data.size());
  out.append(data).append("\r\n");
}

}  // namespace sluice::http
