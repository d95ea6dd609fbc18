// HttpServer: listens, and gives complete requests to the handlers of a router.
//
// The only header of server/http that programs need besides router.h. Its threads only move bytes:
// nothing that a client does makes a handler, or a thread that answers, wait.
// Thread rule: one thread makes, stops and destroys it; the counts may be read from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/limits.h"
#include "server/http/router.h"

namespace sluice::http {

// An answer that no handler gave: the request was refused before one, or its handler threw.
struct RefusedRequest {
  int status = 0;
  // The pattern of the route; empty: no route has the path, or the head could not be read. All
  // texts are valid during the call only.
  std::string_view route;
  std::string_view method;  // empty: not read
  std::string_view path;    // as the client sent it, without its query
  std::string_view id;      // X-Request-Id of the answer
  TimePoint arrived;        // the first byte of the request
};

struct ServerOptions {
  std::string address = "127.0.0.1";  // an IP address, v4 or v6
  uint16_t port = 0;                  // 0: any that is free
  // Not empty: a unix domain socket instead; made and removed. One that is there already is
  // replaced if nobody listens on it; other files are not.
  std::string unix_path;
  int num_threads = 2;
  Limits limits;
  Router router;
  // Looks at each request whose route is known before its body is read, for keys, hosts and types.
  // It runs on the server's threads; it must not block or throw. A fault is answered instead.
  std::function<std::optional<Fault>(const Request&)> gate;
  // Fields that the answer to a request has beside its own, also if it is refused after its head
  // was read. As the gate, it must not block or throw.
  std::function<std::vector<Field>(const Request&)> answer_fields;
  // Told of each of them before the answer leaves, for counts and logs. As the gate, it must not
  // block or throw.
  std::function<void(const RefusedRequest&)> on_refusal;
};

class HttpServer {
 public:
  // Listens when it returns. Errors: kInvalidArgument for an address that is none, or a unix_path
  // that is too long; kIo when it cannot be bound.
  explicit HttpServer(ServerOptions options);
  // As stop(0).
  ~HttpServer();

  // The port that the server listens on; 0 for a unix domain socket.
  uint16_t port() const;
  size_t num_connections() const;

  // Stops accepting, closes connections without a request, lets answers end, each with
  // "Connection: close"; after `limit` closes what is left (Gone::kStopped). Returns when all
  // threads have ended. A second call does nothing.
  void stop(Milliseconds limit);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::http
