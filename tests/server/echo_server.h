// A server that gives back what it got, for tests of framing and limits. Thread rule: any thread.
#pragma once

#include <stdexcept>

#include "server/http/http_server.h"

namespace sluice::http {

inline ServerOptions echo_options(Limits limits = {}) {
  ServerOptions options{.limits = limits};
  options.router.add("POST", "/echo", [](const Request& request, const auto& exchange) {
    exchange->answer({.content_type = "text/plain", .body = request.body});
  });
  options.router.add("GET", "/echo/{}", [](const Request& request, const auto& exchange) {
    exchange->answer({.content_type = "text/plain", .body = request.captures[0]});
  });
  options.router.add("GET", "/throw",
                     [](const Request&, const auto&) { throw std::runtime_error("secret"); });
  options.router.add("GET", "/drop", [](const Request&, const auto&) {});
  return options;
}

}  // namespace sluice::http
