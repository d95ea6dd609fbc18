// Call: one request on its way through a handler: counted and logged when it is answered.
//
// Thread rule: a value that one thread has at a time.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api/answer/answer_options.h"
#include "server/api/openapi.h"
#include "server/api/request/request.h"
#include "server/app/delivery.h"
#include "server/app/server_state.h"
#include "server/app/worker_pool.h"
#include "server/http/exchange.h"
#include "server/http/http_server.h"
#include "server/http/limits.h"
#include "server/metrics/request_log.h"
#include "sluice/error.h"

namespace sluice::server {

// What all handlers share. It outlives the HTTP server and the service.
struct ServerContext {
  ServerState& state;
  // Not for work that waits for the engine: two such tasks would stop all others.
  WorkerPool& workers;
  Delivery& delivery;
  api::ReasoningField reasoning_field = api::ReasoningField::kBoth;
  std::string version;
  std::function<void(const metrics::RequestLogEntry&)> log;  // of any thread
  std::function<int64_t()> num_lost_log_lines;               // likewise; empty: none is lost
  bool log_text = false;                                     // bodies and answers, too
  bool has_page = true;                                      // the page at /
  std::vector<api::DescribedRoute> described;  // in /openapi.json; those who add a route do it
  // The body of /openapi.json, which a first request makes once the vocabulary is known.
  std::once_flag has_openapi;
  std::string openapi;
};

// Counts and logs an answer that no handler gave. The line is written by a worker: a log may block,
// and the threads of the HTTP server must not.
void record_refusal(ServerContext& context, const http::RefusedRequest& refused);

// What a request is told whose handling threw: 503 with Retry-After if memory ran out, else 500.
http::Fault fault_of_exception(const std::exception_ptr& exception);
// What a request is told that the service's check does not let through: 400, but for a device that
// has failed.
http::Fault fault_of_check(const Error& error);

struct Call {
  // Outlives the call: the workers end before the context does.
  ServerContext* context;
  std::string_view route;  // the pattern of the route: a literal
  std::string body;
  std::string query;
  std::vector<std::string> captures;
  std::shared_ptr<http::Exchange> exchange;
  // Queueing for a worker counts into the times of the request.
  http::TimePoint arrived;
  // Of CommonRequest, for the log: types, and names with commas.
  std::string skipped_tools;
  std::string ignored_fields;

  // Answers with a whole body, and records its status, or kClientClosedRequest if it is not taken.
  // `summary`: of a request that reached the engine.
  void answer(http::Answer answer,
              const std::optional<metrics::RequestSummary>& summary = std::nullopt) const;
  void answer_json(std::string json) const { answer({.body = std::move(json)}); }
  void fail(const http::Fault& fault) const;

  // The value that was read, or null after answering with its fault. Counts the fields of a request
  // that no table has.
  template <typename Value>
  Value* value_or_fail(api::Read<Value>& read) const {
    if (const auto* fault = std::get_if<http::Fault>(&read)) {
      fail(*fault);
      return nullptr;
    }
    Value* value = &std::get<Value>(read);
    if constexpr (requires { value->unknown.count; }) {
      context->state.http_metrics().unknown_fields(value->unknown.count);
    }
    return value;
  }
  // False after answering that there is no model of this name.
  bool has_model(const std::optional<std::string>& name) const;

  // How an answer ended, for counts and log.
  struct Ending {
    int status = 200;
    std::optional<metrics::RequestSummary> summary;
    std::optional<metrics::AbortReason> aborted;
    std::string error;               // why the server failed
    std::vector<std::string> texts;  // of the answer's choices, if the log has texts
  };
  // Counts and logs an answer that was sent in another way. A log that throws loses its line.
  void record(Ending ending) const;
};

}  // namespace sluice::server
