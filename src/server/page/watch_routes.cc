// Views come on the engine's thread, which only passes them on; the connection writes their text.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "io/json_type.h"
#include "server/api/answer/answer_body.h"
#include "server/app/routes.h"
#include "server/page/page_routes.h"
#include "server/page/view_json.h"

namespace sluice::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxTimelineMs = 2000;

// A view that waits for a slow client gives way to the next one.
class ViewEvent final : public http::StreamEvent {
 public:
  explicit ViewEvent(std::shared_ptr<const EngineView> view) : view_(std::move(view)) {}

  bool absorb(http::StreamEvent& next) override {
    view_ = std::move(static_cast<ViewEvent&>(next).view_);  // the stream has no others
    return true;
  }
  size_t size_bytes() const override { return sizeof(*this); }
  void render(std::string& out) const override {
    http::append_sse_event(out, "", view_json(*view_));
  }

 private:
  std::shared_ptr<const EngineView> view_;
};

// Ends its stream when the service needs it no more.
struct EventStream {
  explicit EventStream(std::shared_ptr<http::Exchange> to) : exchange(std::move(to)) {}
  ~EventStream() { exchange->finish(); }
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  std::shared_ptr<http::Exchange> exchange;
};

// Headers and a first view leave at once: the service makes one for each new watcher. A client that
// has left is noticed with the next view, for which `send` is false; until then its sink costs some
// hundred bytes.
void events(ServerContext& context, const char* pattern,
            const std::shared_ptr<http::Exchange>& exchange) {
  const auto fault = context.state.refusal();
  context.state.http_metrics().answered(pattern, fault ? fault->status : 200);
  if (fault) {
    exchange->fail(*fault);
    return;
  }
  exchange->begin_stream();
  context.state.model()->service.watch([stream = std::make_shared<EventStream>(exchange)](
                                           const std::shared_ptr<const EngineView>& view) {
    return stream->exchange->send(std::make_unique<ViewEvent>(view));
  });
}

void answer_state(const Call& call, Json about, const EngineView& view) {
  about["view"] = nullptr;
  std::string body = api::json_line(about);
  body.replace(body.rfind("null"), 4, view_json(view));
  call.answer_json(std::move(body));
}

// Those of the start, and those that came while the engine ran; of the KV store's some are both.
Json warnings_of(const EngineService& service) {
  Json warnings = service.warnings();
  for (const std::string& warning : service.snapshot().warnings) {
    if (std::ranges::find(service.warnings(), warning) == service.warnings().end()) {
      warnings.push_back(warning);
    }
  }
  return warnings;
}

// What a page has to know once, and the newest view as text. The worker does not wait for the view:
// the engine's thread, which makes it, gives the answer to a worker, since a log may block.
void state(const Call& call, std::shared_ptr<const ServedModel> model) {
  const Json about = {
      {"model", call.context->state.names()[0]},
      {"version", call.context->version},
      {"max_model_len", model->service.max_model_len()},
      {"timeline", model->service.timeline(std::chrono::nanoseconds(0)).has_value()},
      {"warnings", warnings_of(model->service)}};
  model->service.watch([call, about](const std::shared_ptr<const EngineView>& view) {
    call.context->workers.post([call, about, view] { answer_state(call, about, *view); });
    return false;
  });
}

// "ms=500" of a query; 1000 without it. Empty: not a number from 1 to kMaxTimelineMs.
std::optional<int64_t> timeline_ms(std::string_view query) {
  constexpr std::string_view kName = "ms=";
  if (query.empty()) return 1000;
  if (!query.starts_with(kName)) return std::nullopt;
  int64_t ms = 0;
  const auto [end, error] =
      std::from_chars(query.data() + kName.size(), query.data() + query.size(), ms);
  const bool is_valid =
      error == std::errc() && end == query.data() + query.size() && ms >= 1 && ms <= kMaxTimelineMs;
  return is_valid ? std::optional(ms) : std::nullopt;
}

// On a worker, since a second of spans is up to a megabyte of text.
void timeline(const Call& call, std::shared_ptr<const ServedModel> model) {
  const std::optional<int64_t> ms = timeline_ms(call.query);
  if (!ms) {
    return call.fail(
        {.message = fmt::format("the query must be ms=N, N from 1 to {}", kMaxTimelineMs),
         .param = "ms"});
  }
  const auto streams = model->service.timeline(std::chrono::milliseconds(*ms));
  if (!streams) {
    return call.fail(
        {.status = 404, .message = "nothing is recorded; start the server with --timeline-ring"});
  }
  call.answer_json(timeline_json(*streams));
}

}  // namespace

void add_watch_routes(http::Router& router, ServerContext& context) {
  add_model_route(router, context,
                  {.method = "GET",
                   .pattern = "/sluice/state",
                   .answering = state,
                   .facts = {.summary = "what the engine computes and holds, block by block"}});
  add_model_route(router, context,
                  {.method = "GET",
                   .pattern = "/sluice/timeline",
                   .answering = timeline,
                   .facts = {.summary = "what the engine's streams ran"}});
}

void add_event_routes(http::Router& router, ServerContext& context) {
  router.add("GET", "/sluice/events",
             [&context](const http::Request&, const std::shared_ptr<http::Exchange>& exchange) {
               events(context, "/sluice/events", exchange);
             });
}

}  // namespace sluice::server
