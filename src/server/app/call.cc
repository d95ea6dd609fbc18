// Counting and logging of answers.
#include "server/app/call.h"

#include <chrono>
#include <new>
#include <utility>

namespace sluice::server {
namespace {

// Of all paths that no route has: paths are the client's, and each label is kept for good.
constexpr std::string_view kUnknownRoute = "unknown";

double seconds_since(http::TimePoint begin) {
  return std::chrono::duration<double>(http::Clock::now() - begin).count();
}

}  // namespace

void record_refusal(ServerContext& context, const http::RefusedRequest& refused) {
  const std::string_view route = refused.route.empty() ? kUnknownRoute : refused.route;
  context.state.http_metrics().answered(route, refused.status);
  if (!context.log) return;
  std::string method, path;
  if (refused.route.empty()) {
    method = refused.method;
    path = refused.path;
  }
  context.workers.post(
      [&log = context.log, entry = metrics::RequestLogEntry{
                               .time = std::chrono::system_clock::now(),
                               .id = std::string(refused.id),
                               .route = std::string(route),
                               .method = method,
                               .path = path,
                               .status = refused.status,
                               .total_s = seconds_since(refused.arrived)}] { log(entry); });
}

http::Fault fault_of_exception(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    return {.status = 503,
            .message = "the server is out of memory; try again",
            .fields = {{"Retry-After", "5"}}};
  } catch (const std::exception& error) {
    return {.status = 500, .message = error.what(), .fields = {{"x-should-retry", "false"}}};
  } catch (...) {
    return {.status = 500,
            .message = "the server failed to handle the request",
            .fields = {{"x-should-retry", "false"}}};
  }
}

http::Fault fault_of_check(const Error& error) {
  return {.status = error.code() == ErrorCode::kDevice ? 500 : 400, .message = error.what()};
}

void Call::record(Ending ending) const {
  context->state.http_metrics().answered(route, ending.status);
  if (!context->log) return;
  try {
    metrics::RequestLogEntry entry{.time = std::chrono::system_clock::now(),
                                   .id = exchange->request_id(),
                                   .route = std::string(route),
                                   .status = ending.status,
                                   .total_s = seconds_since(arrived),
                                   .skipped_tools = skipped_tools,
                                   .ignored_fields = ignored_fields,
                                   .summary = ending.summary,
                                   .aborted = ending.aborted,
                                   .error = std::move(ending.error)};
    if (context->log_text) entry.text = {body, std::move(ending.texts)};
    context->log(entry);
  } catch (...) {  // the answer has been sent, so the client gets no error
  }
}

void Call::answer(http::Answer answer,
                  const std::optional<metrics::RequestSummary>& summary) const {
  const int status = answer.status;
  const bool is_taken = exchange->answer(std::move(answer));
  record({.status = is_taken ? status : http::kClientClosedRequest, .summary = summary});
}

bool Call::has_model(const std::optional<std::string>& name) const {
  const auto fault = context->state.check_model(name);
  if (fault) fail(*fault);
  return !fault;
}

void Call::fail(const http::Fault& fault) const {
  const bool is_taken = exchange->fail(fault);
  record({.status = is_taken ? fault.status : http::kClientClosedRequest,
          .error = fault.status == 500 ? fault.message : ""});
}

}  // namespace sluice::server
