// SluiceServer: the HTTP server of an engine, from the first byte to the last.
//
//   SluiceServer server(options);              // listens; everything answers 503
//   EngineService service(engine, limits, [&](const LoadProgress& p) { server.set_loading(p); });
//   server.serve(service);                     // answers
//   server.drain(std::chrono::seconds(30));    // ends what runs, accepts nothing new
//
// Used by `sluice serve` and its tests. Thread rule: one thread makes, serves, drains and destroys
// it; set_loading is called on any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api/answer/answer_options.h"
#include "server/app/gate.h"
#include "server/app/server_state.h"
#include "server/http/http_server.h"
#include "server/metrics/request_log.h"

namespace sluice::server {

struct SluiceServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 8000;   // 0: any that is free
  std::string unix_path;  // not empty: a unix domain socket instead
  int num_http_threads = 2;
  int num_workers = 2;
  http::Limits limits;
  GateOptions gate;  // is_local is derived
  std::string model_directory;
  std::string chat_template;             // a file instead of the model's own; empty: the model's
  std::vector<std::string> model_names;  // empty: the last part of model_directory
  api::ReasoningField reasoning_field = api::ReasoningField::kBoth;
  std::optional<ToolFormat> tool_format;  // of calls in answers; empty: as the template shows
  std::string version;
  bool has_page = true;  // the page at /
  // Called for each answer, from any thread; empty: no log.
  std::function<void(const metrics::RequestLogEntry&)> log;
  // Lines of the log that could not be written, for /metrics; from any thread. Empty: none.
  std::function<int64_t()> num_lost_log_lines;
  bool log_text = false;  // entries have the bodies of requests and the texts of answers
};

class SluiceServer {
 public:
  // Errors: those of HttpServer; kInvalidArgument for an address beyond this machine without keys,
  // unless `allow_unauthenticated`.
  SluiceServer(SluiceServerOptions options, bool allow_unauthenticated);
  // As drain(0). REQUIRES: the service still exists, if serve was called.
  ~SluiceServer();
  SluiceServer(const SluiceServer&) = delete;
  SluiceServer& operator=(const SluiceServer&) = delete;

  uint16_t port() const;
  size_t num_connections() const;  // that are open
  void set_loading(const LoadProgress& progress);
  // The service is loaded. Errors: those of ServedModel's constructor.
  void serve(EngineService& service);
  const ServerState& state() const;
  // Accepts no requests, lets those that run end, aborts the rest after `limit`, and closes the
  // connections.
  void drain(std::chrono::milliseconds limit);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::server
