#include "server/app/cors_origins.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/printable.h"

namespace sluice::server {
namespace {

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

// As RFC 3986 has it, in lower case, as browsers send it. Apps have schemes of their own.
bool is_scheme(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::ranges::all_of(text, [](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  });
}

// A scheme, "://", and a host with perhaps a port.
bool is_origin(std::string_view text) {
  constexpr std::string_view kBetween = "://";
  const size_t end = text.find(kBetween);
  if (end == std::string_view::npos || !is_scheme(text.substr(0, end))) return false;
  const std::string_view host = text.substr(end + kBetween.size());
  return !host.empty() && std::ranges::all_of(host, [](char c) {
    return c > ' ' && c < 127 && std::string_view("/?#@*,\"").find(c) == std::string_view::npos;
  });
}

}  // namespace

CorsOrigins::CorsOrigins(std::vector<std::string> origins) : origins_(std::move(origins)) {
  for (const std::string& origin : origins_) {
    if (is_origin(origin)) continue;
    fail(ErrorCode::kInvalidArgument,
         "--cors-origins has \"{}\"; give origins such as https://app.example, "
         "http://localhost:3000 or app://name",
         printable(origin));
  }
}

bool CorsOrigins::allows(std::string_view origin) const {
  return std::ranges::any_of(
      origins_, [&](const std::string& known) { return http::equal_names(known, origin); });
}

// Caches must keep the answers to different pages apart, those without the first field included.
std::vector<http::Field> CorsOrigins::fields_for(const http::Request& request) const {
  if (origins_.empty()) return {};
  std::vector<http::Field> fields = {{"Vary", "Origin"}};
  const std::string* origin = request.find("Origin");
  if (origin == nullptr || !allows(*origin)) return fields;
  fields.push_back({"Access-Control-Allow-Origin", *origin});
  fields.push_back({"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"});
  return fields;
}

// Clients of pages send headers of their own, which mean nothing to the server: all may come.
http::Answer CorsOrigins::preflight(const http::Request& request) {
  http::Answer answer{.content_type = "text/plain"};
  answer.fields = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                   {"Access-Control-Max-Age", "600"}};
  if (const std::string* headers = request.find("Access-Control-Request-Headers")) {
    answer.fields.push_back({"Access-Control-Allow-Headers", *headers});
  }
  return answer;
}

}  // namespace sluice::server
