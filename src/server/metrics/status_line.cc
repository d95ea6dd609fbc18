#include "server/metrics/status_line.h"

#include <chrono>

#include <fmt/format.h>

#include "core/error.h"
#include "io/json_type.h"

namespace sluice::metrics {
namespace {

double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::optional<Status> StatusWatch::next(TimePoint now, const TokenTotals& tokens,
                                        const EngineReading& engine) {
  SLUICE_CHECK(now > last_time_);
  const double seconds = std::chrono::duration<double>(now - last_time_).count();
  const int64_t computed = tokens.num_computed - last_tokens_.num_computed;
  const int64_t generated = tokens.num_generated - last_tokens_.num_generated;
  const int64_t queried = tokens.num_queried() - last_tokens_.num_queried();
  if (queried > 0) hit_rate_ = share(tokens.num_cached - last_tokens_.num_cached, queried);
  const Status status{.prompt_tokens_per_s = static_cast<double>(computed) / seconds,
                      .generated_tokens_per_s = static_cast<double>(generated) / seconds,
                      .num_running = engine.num_running,
                      .num_waiting = engine.num_waiting,
                      .num_preemptions = engine.num_preemptions - last_preemptions_,
                      .kv_usage = engine.kv_usage(),
                      .hit_rate = hit_rate_};
  const bool has_requests = engine.num_running + engine.num_waiting > 0;
  const bool is_active = computed > 0 || generated > 0 || queried > 0;
  const bool is_worth_saying = has_requests || is_active || was_active_;
  last_time_ = now;
  last_tokens_ = tokens;
  last_preemptions_ = engine.num_preemptions;
  was_active_ = is_active;
  if (!is_worth_saying) return std::nullopt;
  return status;
}

std::string status_text(LogTime time, const Status& status) {
  constexpr double kPercent = 100;
  const std::string preemptions =
      status.num_preemptions > 0 ? fmt::format("Preemptions: {}, ", status.num_preemptions) : "";
  return fmt::format(
      "{} Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} "
      "tokens/s, Running: {} reqs, Waiting: {} reqs, {}GPU KV cache usage: {:.1f}%, Prefix cache "
      "hit rate: {:.1f}%",
      log_time_text(time), status.prompt_tokens_per_s, status.generated_tokens_per_s,
      status.num_running, status.num_waiting, preemptions, status.kv_usage * kPercent,
      status.hit_rate * kPercent);
}

std::string status_json(LogTime time, const Status& status) {
  nlohmann::ordered_json object = log_object(time, "status");
  object["prompt_tokens_per_s"] = status.prompt_tokens_per_s;
  object["generated_tokens_per_s"] = status.generated_tokens_per_s;
  object["running"] = status.num_running;
  object["waiting"] = status.num_waiting;
  object["preemptions"] = status.num_preemptions;
  object["kv_usage"] = status.kv_usage;
  object["prefix_hit_rate"] = status.hit_rate;
  return log_json_line(object);
}

}  // namespace sluice::metrics
