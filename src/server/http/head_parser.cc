#include "server/http/head_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <fmt/format.h>

#include "core/printable.h"

namespace sluice::http {
namespace {

namespace beast = boost::beast;

bool is_all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Checks what Beast tolerates: the ends of lines and continued fields.
std::optional<Fault> check_bytes(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 || c == '\t') continue;
    const bool ends_line = c == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    if (!ends_line) {
      return closing_fault(400, fmt::format("byte 0x{:02x} at position {} of the request's head is "
                                            "not allowed; lines end with CR LF",
                                            c, i));
    }
    ++i;
    if (i + 1 < text.size() && (text[i + 1] == ' ' || text[i + 1] == '\t')) {
      return closing_fault(400, "a header continues on a second line; send it on one");
    }
  }
  return std::nullopt;
}

// Of fields whose number decides where the body ends: a proxy before this server may take the first
// of two, and this server the second.
struct FieldCounts {
  int host = 0;
  int length = 0;
  int encoding = 0;
};

FieldCounts count_fields(const Request& request) {
  FieldCounts counts;
  for (const Field& field : request.fields) {
    counts.host += equal_names(field.name, "Host");
    counts.length += equal_names(field.name, "Content-Length");
    counts.encoding += equal_names(field.name, "Transfer-Encoding");
  }
  return counts;
}

// A body in chunks. What proxies and servers read differently is refused: another coding, a length
// beside it, HTTP/1.0. Source: RFC 9112, section 6.1.
std::optional<Fault> read_encoding(Head& head, const FieldCounts& counts) {
  if (counts.encoding > 1) return closing_fault(400, "Transfer-Encoding is given twice");
  if (counts.length > 0) {
    return closing_fault(400, "Transfer-Encoding and Content-Length are both given; send one");
  }
  if (head.request.minor_version == 0) {
    return closing_fault(400, "Transfer-Encoding needs HTTP/1.1, but the request is HTTP/1.0");
  }
  const std::string& value = *head.request.find("Transfer-Encoding");
  if (!equal_names(value, "chunked")) {
    return closing_fault(
        400, fmt::format("Transfer-Encoding is \"{}\"; it must be \"chunked\"", printable(value)));
  }
  head.framing = Framing::kChunked;
  return std::nullopt;
}

// A body of known length. Signs, spaces, lists and a second length are refused, which Beast or
// others would take. Source: RFC 9112, section 6.3.
std::optional<Fault> read_length(Head& head, const FieldCounts& counts, const Limits& limits) {
  const std::string& value = *head.request.find("Content-Length");
  if (counts.length > 1) return closing_fault(400, "Content-Length is given twice");
  if (!is_all_digits(value)) {
    return closing_fault(
        400, fmt::format("Content-Length is \"{}\"; it must be all digits", printable(value)));
  }
  // 18 digits always fit; whatever has more is above any limit.
  const bool fits = value.size() <= 18 && std::stoull(value) <= limits.body_bytes;
  if (!fits) {
    return closing_fault(413, fmt::format("the body has {} bytes; this server takes up to {}",
                                          printable(value), limits.body_bytes));
  }
  head.body_bytes = std::stoull(value);
  head.framing = head.body_bytes > 0 ? Framing::kLength : Framing::kNone;
  return std::nullopt;
}

// How the body ends, before a byte of it is read. A POST without either is refused rather than
// taken for an empty one: its body would be read as the next request.
std::optional<Fault> read_framing(Head& head, const Limits& limits) {
  const Request& request = head.request;
  const FieldCounts counts = count_fields(request);
  if (counts.host > 1 || (counts.host == 0 && request.minor_version == 1)) {
    return closing_fault(400,
                         fmt::format("the request has {} Host headers; send one", counts.host));
  }
  if (counts.encoding > 0) return read_encoding(head, counts);
  if (counts.length > 0) return read_length(head, counts, limits);
  if (request.method == "POST" || request.method == "PUT" || request.method == "PATCH") {
    return closing_fault(
        411, fmt::format("{} needs Content-Length or Transfer-Encoding: chunked", request.method));
  }
  return std::nullopt;
}

// What the client wants done before or with its body. An unknown expectation must not be ignored.
std::optional<Fault> read_expectations(Head& head) {
  if (const std::string* encoding = head.request.find("Content-Encoding")) {
    return closing_fault(415, fmt::format("Content-Encoding is \"{}\"; send the body unencoded",
                                          printable(*encoding)));
  }
  for (const Field& field : head.request.fields) {
    if (!equal_names(field.name, "Expect")) continue;
    if (!equal_names(field.value, "100-continue")) {
      return closing_fault(
          417, fmt::format("Expect is \"{}\"; only 100-continue is known", printable(field.value)));
    }
    head.expects_continue = head.request.minor_version == 1 && head.framing != Framing::kNone;
  }
  return std::nullopt;
}

// Path and query as they came, still with their escapes; neither is looked up in a file system.
std::optional<Fault> read_target(Head& head, std::string_view target, const Limits& limits) {
  if (target.size() > limits.target_bytes) {
    return closing_fault(414, fmt::format("the request's target has {} bytes; the limit is {}",
                                          target.size(), limits.target_bytes));
  }
  if (target.empty() || target.front() != '/') {
    return closing_fault(400, "the request's target must be a path that starts with /");
  }
  const size_t mark = target.find('?');
  head.request.path = target.substr(0, mark);
  if (mark != std::string_view::npos) head.request.query = target.substr(mark + 1);
  return std::nullopt;
}

using Message = beast::http::request<beast::http::empty_body>;

// Everything of Beast's message but the framing. A request id of the client is kept if it is safe
// to write into a log; else one is made.
std::optional<Fault> copy_message(Head& head, const Message& message, const Limits& limits) {
  if (message.version() != 10 && message.version() != 11) {
    return closing_fault(400, "the request is not HTTP/1.1");
  }
  const auto count = static_cast<size_t>(std::distance(message.begin(), message.end()));
  if (count > limits.num_fields) {
    return closing_fault(
        431, fmt::format("the request has {} headers; the limit is {}", count, limits.num_fields));
  }
  Request& request = head.request;
  request.method = std::string(message.method_string());
  request.minor_version = static_cast<int>(message.version() % 10);
  for (const auto& field : message) {
    request.fields.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  head.keep_alive = message.version() == 11 && message.keep_alive();
  const std::string* id = request.find("X-Request-Id");
  request.id = id != nullptr && is_valid_request_id(*id) ? *id : make_request_id();
  const auto target = message.target();
  return read_target(head, {target.data(), target.size()}, limits);
}

}  // namespace

Fault closing_fault(int status, std::string message) {
  return {.status = status, .message = std::move(message), .close = true};
}

std::optional<Fault> parse_head(std::string_view text, const Limits& limits, Head& head) {
  if (auto fault = check_bytes(text)) return fault;
  beast::http::request_parser<beast::http::empty_body> parser;
  // The caller has counted; Beast's own limits must not be the smaller ones.
  parser.header_limit(static_cast<uint32_t>(text.size()) + 1);
  parser.body_limit(boost::none);
  beast::error_code error;
  parser.put(boost::asio::buffer(text.data(), text.size()), error);
  if (error || !parser.is_header_done()) {
    return closing_fault(400, fmt::format("the request's head is not HTTP/1.1: {}",
                                          error ? error.message() : "it does not end"));
  }
  if (auto fault = copy_message(head, parser.get(), limits)) return fault;
  if (auto fault = read_framing(head, limits)) return fault;
  return read_expectations(head);
}

}  // namespace sluice::http
