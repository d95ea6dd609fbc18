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

#include "server/http/limits.h"
#include "server/http/router.h"

namespace sluice::http {

struct ServerOptions {
  std::string address = "127.0.0.1";  // an IP address, v4 or v6
  uint16_t port = 0;                  // 0: any that is free
  std::string unix_path;              // not empty: a unix domain socket instead; made and removed
  int num_threads = 2;
  Limits limits;
  Router router;
  // Looks at each request whose route is known before its body is read, for keys, hosts and types.
  // It runs on the server's threads; it must not block or throw. A fault is answered instead.
  std::function<std::optional<Fault>(const Request&)> gate;
};

class HttpServer {
 public:
  // Listens when it returns. Errors: kInvalidArgument for an address that is none; kIo when it
  // cannot be bound.
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
