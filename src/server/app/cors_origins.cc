#include "server/app/cors_origins.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/printable.h"

namespace sluice::server {
namespace {

// A scheme, "://", and a host with perhaps a port.
bool is_origin(std::string_view text) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!text.starts_with(scheme)) continue;
    const std::string_view host = text.substr(scheme.size());
    return !host.empty() && std::ranges::all_of(host, [](char c) {
      return c > ' ' && c < 127 && std::string_view("/?#@*,\"").find(c) == std::string_view::npos;
    });
  }
  return false;
}

}  // namespace

CorsOrigins::CorsOrigins(std::vector<std::string> origins) : origins_(std::move(origins)) {
  for (const std::string& origin : origins_) {
    if (is_origin(origin)) continue;
    fail(ErrorCode::kInvalidArgument,
         "--cors-origins has \"{}\"; give origins such as https://app.example or "
         "http://localhost:3000",
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
