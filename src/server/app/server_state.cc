// The phase is not stored: it follows from the model, the drain and the service's snapshot.
#include "server/app/server_state.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "core/printable.h"
#include "io/json_type.h"

namespace sluice::server {
namespace {

using Phase = ServerState::Phase;

// An engine whose pass makes no progress for this long hangs in the device or the driver.
constexpr std::chrono::nanoseconds kMaxStall = std::chrono::seconds(600);

int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string_view stage_name(LoadProgress::Stage stage) {
  switch (stage) {
    case LoadProgress::Stage::kTokenizer:
      return "tokenizer";
    case LoadProgress::Stage::kPinning:
      return "pinning";
    case LoadProgress::Stage::kWeights:
      return "weights";
  }
  return "";
}

struct PhaseFacts {
  std::string_view name;
  std::string_view message;
  std::string_view retry_after;  // seconds
  metrics::Rejection rejection;
};

PhaseFacts facts_of(Phase phase) {
  if (phase == Phase::kLoading) {
    return {"loading", "the model is being loaded; try again", "5", metrics::Rejection::kLoading};
  }
  if (phase == Phase::kDraining) {
    return {"draining", "the server is shutting down", "30", metrics::Rejection::kDraining};
  }
  return {"dead", "the engine failed; the server will exit", "30", metrics::Rejection::kDead};
}

}  // namespace

ServerState::ServerState(std::vector<std::string> names)
    : names_(std::move(names)),
      created_(unix_seconds()),
      loading_{.stage = LoadProgress::Stage::kTokenizer} {}

void ServerState::set_loading(const LoadProgress& progress) {
  const std::lock_guard lock(mutex_);
  loading_ = progress;
}

void ServerState::set_model(std::shared_ptr<const ServedModel> model) {
  const std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

void ServerState::set_draining() { is_draining_ = true; }

std::shared_ptr<const ServedModel> ServerState::model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

Phase ServerState::phase() const {
  const std::shared_ptr<const ServedModel> model = this->model();
  if (model != nullptr) {
    const ServiceSnapshot now = model->service.snapshot();
    const bool is_stalled = now.stalled_ns > kMaxStall.count();
    if (now.state == ServiceState::kDead || is_stalled) return Phase::kDead;
  }
  if (is_draining_) return Phase::kDraining;
  return model == nullptr ? Phase::kLoading : Phase::kServing;
}

std::optional<http::Fault> ServerState::refusal() {
  const Phase now = phase();
  if (now == Phase::kServing) return std::nullopt;
  const PhaseFacts facts = facts_of(now);
  http_metrics_.rejected(facts.rejection);
  return http::Fault{.status = 503,
                     .message = std::string(facts.message),
                     .fields = {{"Retry-After", std::string(facts.retry_after)}}};
}

std::optional<http::Fault> ServerState::check_model(const std::optional<std::string>& name) const {
  if (!name || std::ranges::find(names_, *name) != names_.end()) return std::nullopt;
  return http::Fault{.status = 404,
                     .message = fmt::format("the model `{}` does not exist; this server has {}",
                                            printable(*name), fmt::join(names_, ", ")),
                     .param = "model"};
}

http::Answer ServerState::health() const {
  const Phase now = phase();
  if (now == Phase::kServing) return {.body = R"({"status":"ok"})"};
  nlohmann::ordered_json body = {{"status", facts_of(now).name}};
  if (now == Phase::kLoading) {
    const std::lock_guard lock(mutex_);
    body["stage"] = stage_name(loading_.stage);
    body["share"] = loading_.share;
  }
  return {.status = 503, .fields = {{"Retry-After", "5"}}, .body = body.dump()};
}

}  // namespace sluice::server
