// CorsOrigins: pages of which other origins a browser lets use the server.
//
// The gate asks it who may send requests; the HTTP server adds its fields to answers, without which
// the browser would hide them from the page. Thread rule: immutable; any number of threads may call
// one object at the same time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"
#include "server/http/router.h"

namespace sluice::server {

class CorsOrigins {
 public:
  // None: no page of another origin may use the server.
  CorsOrigins() = default;
  // Each as a browser sends it: "https://app.example" or "http://localhost:3000". Errors:
  // kInvalidArgument for another form, "*" included: without keys it would open the server to every
  // page that its user visits.
  explicit CorsOrigins(std::vector<std::string> origins);

  bool empty() const { return origins_.empty(); }
  // In any case of letters.
  bool allows(std::string_view origin) const;

  // What the answer to a request has beside its own fields: nothing without origins.
  std::vector<http::Field> fields_for(const http::Request& request) const;

  // What a browser is told that asks before it sends a request of a page. It asks without a key.
  static http::Answer preflight(const http::Request& request);

 private:
  std::vector<std::string> origins_;
};

}  // namespace sluice::server
