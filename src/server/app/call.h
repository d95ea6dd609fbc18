// Call: one request on its way through a handler: counted and logged when it is answered.
//
// Thread rule: a value that one thread has at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api/answer_options.h"
#include "server/api/request.h"
#include "server/app/delivery.h"
#include "server/app/server_state.h"
#include "server/app/worker_pool.h"
#include "server/http/exchange.h"
#include "server/http/limits.h"
#include "server/metrics/request_log.h"

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
};

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

  // Answers with a whole body. `summary`: of a request that reached the engine.
  void answer(http::Answer answer,
              const std::optional<metrics::RequestSummary>& summary = std::nullopt) const;
  void answer_json(std::string json) const { answer({.body = std::move(json)}); }
  void fail(const http::Fault& fault) const;

  // The value that was read, or null after answering with its fault.
  template <typename Value>
  Value* value_or_fail(api::Read<Value>& read) const {
    if (const auto* fault = std::get_if<http::Fault>(&read)) {
      fail(*fault);
      return nullptr;
    }
    return &std::get<Value>(read);
  }
  // False after answering that there is no model of this name.
  bool has_model(const std::optional<std::string>& name) const;

  // Counts and logs an answer that was sent in another way.
  void record(int status, const std::optional<metrics::RequestSummary>& summary,
              std::optional<metrics::AbortReason> aborted) const;
};

}  // namespace sluice::server
