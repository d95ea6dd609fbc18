#include "server/app/routes.h"

#include <exception>
#include <set>
#include <string>
#include <utility>

#include "server/app/cors_origins.h"
#include "server/page/page_routes.h"

namespace sluice::server {
namespace {

// On a worker. The phase is asked here, not when the call was queued: the server may drain since.
void answer_with_model(const Call& call, Answering answering) {
  try {
    if (const auto fault = call.context->state.refusal()) return call.fail(*fault);
    answering(call, call.context->state.model());
  } catch (...) {
    call.fail(fault_of_exception(std::current_exception()));
  }
}

}  // namespace

void add_routes(http::Router& router, ServerContext& context) {
  router.add_prefix("/v1");  // base URLs without it, as llama-server takes them
  add_status_routes(router, context);
  add_text_routes(router, context);
  add_generation_routes(router, context);
  add_messages_routes(router, context);
  add_response_routes(router, context);
  add_watch_routes(router, context);
  add_pin_routes(router, context);
  // Neither is a part of the API: a description could not say that the events never end.
  add_event_routes(router, context);
  if (context.has_page) add_page_routes(router, context);
}

void add_preflight_routes(http::Router& router, ServerContext& context) {
  std::set<std::string> patterns;
  for (const http::Router::Name& name : router.names()) patterns.insert(name.pattern);
  for (const std::string& pattern : patterns) {
    router.add("OPTIONS", pattern,
               [&context, pattern](const http::Request& request,
                                   const std::shared_ptr<http::Exchange>& exchange) {
                 context.state.http_metrics().answered(pattern, 200);
                 exchange->answer(CorsOrigins::preflight(request));
               });
  }
}

void add_model_route(http::Router& router, ServerContext& context, const ModelRoute& route) {
  context.described.push_back({route.method, route.pattern, route.facts});
  router.add(
      route.method, route.pattern,
      [&context, pattern = route.pattern, answering = route.answering](
          http::Request request, std::shared_ptr<http::Exchange> exchange) {
        Call call{.context = &context,
                  .route = pattern,
                  .body = std::move(request.body),
                  .query = std::move(request.query),
                  .captures = std::move(request.captures),
                  .exchange = std::move(exchange),
                  .arrived = http::Clock::now()};
        context.workers.post(
            [call = std::move(call), answering] { answer_with_model(call, answering); });
      },
      route.faults);
}

}  // namespace sluice::server
