// Counting and logging of answers.
#include "server/app/call.h"

#include <chrono>
#include <utility>

namespace sluice::server {

void Call::record(int status, const std::optional<metrics::RequestSummary>& summary,
                  std::optional<metrics::AbortReason> aborted) const {
  context->state.http_metrics().answered(route, status);
  if (!context->log) return;
  const std::chrono::duration<double> total = http::Clock::now() - arrived;
  context->log({.time = std::chrono::system_clock::now(),
                .id = exchange->request_id(),
                .route = std::string(route),
                .status = status,
                .total_s = total.count(),
                .summary = summary,
                .aborted = aborted});
}

void Call::answer(http::Answer answer,
                  const std::optional<metrics::RequestSummary>& summary) const {
  const int status = answer.status;
  exchange->answer(std::move(answer));
  record(status, summary, std::nullopt);
}

bool Call::has_model(const std::optional<std::string>& name) const {
  const auto fault = context->state.check_model(name);
  if (fault) fail(*fault);
  return !fault;
}

void Call::fail(const http::Fault& fault) const { answer(http::fault_answer(fault)); }

}  // namespace sluice::server
