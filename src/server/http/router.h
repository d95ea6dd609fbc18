// Router: method and path to the function that answers.
//
// Filled before the server starts, then only read. Used by Connection. Thread rule: find() from any
// thread once the last add() has returned.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/http/exchange.h"
#include "server/http/fault.h"
#include "server/http/message.h"

namespace sluice::http {

// Gets a complete request, and the exchange through which any thread answers, now or later. It runs
// on a thread of the server and must not block: long work belongs to another thread, which takes
// the exchange along. An exception is answered with 500.
using Handler = std::function<void(Request request, std::shared_ptr<Exchange> exchange)>;

class Router {
 public:
  struct Match {
    const Handler* handler;
    std::vector<std::string> captures;
    std::string_view pattern;  // as it was added; lives as long as the router
  };

  // A pattern is a path whose segments are texts, or {} for any one segment; a last {*} stands for
  // one or more. {} and {*} are captured, percent-decoded, and do not begin with an empty segment.
  // The first pattern added that fits counts. `faults` writes the errors of requests to paths that
  // fit, whoever finds them.
  void add(std::string method, std::string_view pattern, Handler handler,
           FaultBody faults = fault_body);

  // Paths that no route has count as if they began with this one: "/models" is "/v1/models" then.
  void add_prefix(std::string_view prefix) { prefix_ = split(prefix); }

  // Errors: 400 for a path that is wrongly percent-encoded or holds NUL, 404 for an unknown path,
  // 405 with Allow for one that knows other methods.
  std::variant<Match, Fault> find(std::string_view method, std::string_view path) const;
  // How errors of requests to this path are written, whatever the method is; OpenAI's way for a
  // path that is unknown.
  FaultBody faults_of(std::string_view path) const;

  struct Name {
    std::string method;
    std::string pattern;
  };
  // All routes, in the order of add().
  std::vector<Name> names() const;

  // The pattern of the first route that fits the path, whatever its method; empty if none does.
  std::string_view pattern_of(std::string_view path) const;

 private:
  struct Route {
    std::string method;
    std::string pattern;
    std::vector<std::string> segments;
    Handler handler;
    FaultBody faults;
  };

  using Segments = std::vector<std::string>;

  static Segments split(std::string_view path);
  // The segments of the path, decoded, with the prefix if only so a route has them. Nothing if it
  // is wrongly percent-encoded.
  std::optional<Segments> segments_of(std::string_view path) const;
  const Route* route_of(const Segments& segments) const;
  const Route* route_of(std::string_view path) const;

  std::vector<Route> routes_;
  Segments prefix_;
};

}  // namespace sluice::http
