// ServerState: whether the server loads, serves, drains or is dead, and the model that it serves.
//
// Handlers ask it before they do anything. Thread rule: any thread, any member, any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/app/served_model.h"
#include "server/http/fault.h"
#include "server/metrics/http_metrics.h"
#include "sluice/progress.h"

namespace sluice::server {

class ServerState {
 public:
  enum class Phase { kLoading, kServing, kDraining, kDead };

  // `names`: what the model is called in requests, at least one; the first is the default.
  explicit ServerState(std::vector<std::string> names);

  void set_loading(const LoadProgress& progress);
  void set_model(std::shared_ptr<const ServedModel> model);
  void set_draining();

  // A dead engine, or one that stands still for longer than `kMaxStall`, counts as dead.
  Phase phase() const;
  // Null until it is loaded.
  std::shared_ptr<const ServedModel> model() const;

  // Why a request that needs the model cannot be answered now: 503 with Retry-After. Counted as a
  // rejection.
  std::optional<http::Fault> refusal();
  // 404 for a name that the server does not have; none without a name.
  std::optional<http::Fault> check_model(const std::optional<std::string>& name) const;

  // 200 {"status": "ok"}, or 503 with what the server does instead and, while it loads, the stage
  // and its share.
  http::Answer health() const;

  const std::vector<std::string>& names() const { return names_; }
  int64_t created() const { return created_; }
  metrics::HttpMetrics& http_metrics() { return http_metrics_; }

 private:
  const std::vector<std::string> names_;
  const int64_t created_;  // Unix time in seconds
  metrics::HttpMetrics http_metrics_;
  std::atomic<bool> is_draining_ = false;
  mutable std::mutex mutex_;  // of the two below
  LoadProgress loading_;
  std::shared_ptr<const ServedModel> model_;
};

}  // namespace sluice::server
