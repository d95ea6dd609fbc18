#include "server/metrics/http_metrics.h"

namespace sluice::metrics {
namespace {

constexpr std::array<std::string_view, kNumRejections> kRejectionNames = {
    "waiting", "waiting_tokens", "loading", "draining", "dead"};
constexpr std::array<std::string_view, kNumAbortReasons> kAbortReasonNames = {
    "disconnect", "slow_client", "timeout", "drain"};

}  // namespace

std::string_view rejection_name(Rejection reason) {
  return kRejectionNames.at(static_cast<size_t>(reason));
}

std::string_view abort_reason_name(AbortReason reason) {
  return kAbortReasonNames.at(static_cast<size_t>(reason));
}

void HttpMetrics::answered(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++answered_[{std::string(route), status}];
}

void HttpMetrics::append_to(Exposition& page) const {
  page.counter("vllm:admission_rejections_total", "Valid requests that were not accepted.");
  for (size_t i = 0; i < kNumRejections; ++i) {
    page.sample(static_cast<double>(rejected_[i].value()),
                Labels().add("reason", kRejectionNames[i]));
  }
  page.counter("sluice:requests_aborted_total", "Accepted requests that the server cancelled.");
  for (size_t i = 0; i < kNumAbortReasons; ++i) {
    page.sample(static_cast<double>(aborted_[i].value()),
                Labels().add("reason", kAbortReasonNames[i]));
  }
  page.counter("sluice:unknown_request_fields_total", "Members of bodies that were ignored.");
  page.sample(static_cast<double>(unknown_fields_.value()));
  page.counter("sluice:http_requests_total", "Answered HTTP requests.");
  const std::lock_guard lock(mutex_);
  for (const auto& [key, count] : answered_) {
    page.sample(static_cast<double>(count),
                Labels().add("route", key.first).add("code", std::to_string(key.second)));
  }
}

}  // namespace sluice::metrics
