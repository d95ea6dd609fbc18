// Routes that say how the server is and what it has. They need no worker: nothing here takes long.
#include <utility>

#include "io/json_type.h"
#include "server/api/answer/answer_body.h"
#include "server/app/routes.h"
#include "server/metrics/metrics_page.h"

namespace sluice::server {
namespace {

using Json = nlohmann::ordered_json;

// What a route without a body answers.
using Saying = http::Answer (*)(ServerContext& context, const http::Request& request);

void add_status_route(http::Router& router, ServerContext& context, const char* pattern,
                      const api::RouteFacts& facts, Saying saying) {
  // HTTP has HEAD wherever there is GET, so a description of it would only repeat that.
  context.described.push_back({"GET", pattern, facts});
  for (const char* method : {"GET", "HEAD"}) {
    router.add(method, pattern,
               [&context, pattern, saying](const http::Request& request,
                                           const std::shared_ptr<http::Exchange>& exchange) {
                 http::Answer answer = saying(context, request);
                 context.state.http_metrics().answered(pattern, answer.status);
                 exchange->answer(std::move(answer));
               });
  }
}

http::Answer health(ServerContext& context, const http::Request&) { return context.state.health(); }

// Answers as long as the process runs, so that a supervisor tells a busy server from a hung one.
http::Answer live(ServerContext&, const http::Request&) { return {.body = R"({"status":"ok"})"}; }

http::Answer version(ServerContext& context, const http::Request&) {
  return {.body = Json{{"version", context.version}}.dump()};
}

// Milliseconds of work, so it is done once; while the model loads for each request.
http::Answer openapi(ServerContext& context, const http::Request&) {
  const auto described = [&](int32_t vocab_size) {
    return api::openapi_document(context.described, {.version = context.version,
                                                     .model_names = context.state.names(),
                                                     .vocab_size = vocab_size})
        .dump();
  };
  const auto model = context.state.model();
  if (model == nullptr) return {.body = described(0)};
  std::call_once(context.has_openapi,
                 [&] { context.openapi = described(model->rules.vocab_size); });
  return {.body = context.openapi};
}

// What routers balance by: all requests of the engine, waiting ones included.
http::Answer load(ServerContext& context, const http::Request&) {
  const auto model = context.state.model();
  int64_t num_open = 0;
  if (model != nullptr) {
    const ServiceSnapshot now = model->service.snapshot();
    num_open = now.num_running + now.num_waiting;
  }
  return {.body = Json{{"server_load", num_open}}.dump()};
}

// Answers in every phase: while the model loads, the page has the metrics of HTTP alone.
http::Answer metrics_page(ServerContext& context, const http::Request&) {
  const auto model = context.state.model();
  metrics::EngineReading reading;
  if (model != nullptr) reading = model->reading();
  const int64_t num_lost = context.num_lost_log_lines ? context.num_lost_log_lines() : 0;
  return {.content_type = std::string(metrics::kExpositionType),
          .body = metrics::render_metrics({.model_name = context.state.names()[0],
                                           .http = context.state.http_metrics(),
                                           .process = {.resident_bytes = metrics::resident_bytes(),
                                                       .num_lost_log_lines = num_lost},
                                           .requests = model ? &model->metrics : nullptr,
                                           .engine = model ? &reading : nullptr})};
}

// max_model_len is what clients cut their prompts by.
Json model_json(ServerContext& context, const ServedModel& model, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", context.state.created()},
          {"owned_by", "sluice"},
          {"root", model.directory},
          {"parent", nullptr},
          {"max_model_len", model.service.max_model_len()}};
}

// One entry for each name; all of them are the same model.
http::Answer models(ServerContext& context, const http::Request&) {
  if (const auto fault = context.state.refusal()) return http::fault_answer(*fault);
  const auto model = context.state.model();
  Json list = Json::array();
  for (const std::string& name : context.state.names()) {
    list.push_back(model_json(context, *model, name));
  }
  return {.body = api::json_line({{"object", "list"}, {"data", std::move(list)}})};
}

// The name is the rest of the path, since names may have slashes.
http::Answer one_model(ServerContext& context, const http::Request& request) {
  if (const auto fault = context.state.refusal()) return http::fault_answer(*fault);
  const std::string& name = request.captures.at(0);
  if (const auto fault = context.state.check_model(name)) return http::fault_answer(*fault);
  return {.body = api::json_line(model_json(context, *context.state.model(), name))};
}

}  // namespace

void add_status_routes(http::Router& router, ServerContext& context) {
  const auto add = [&](const char* pattern, const api::RouteFacts& facts, Saying saying) {
    add_status_route(router, context, pattern, facts, saying);
  };
  // Routes without a key are those of gate.cc.
  add("/health", {.summary = "whether the server serves", .needs_key = false}, health);
  add("/live", {.summary = "whether the process lives", .needs_key = false}, live);
  add("/ping", {.summary = "whether the process lives", .needs_key = false}, live);
  add("/version", {.summary = "the version", .needs_key = false}, version);
  add("/openapi.json", {.summary = "this description", .needs_key = false}, openapi);
  add("/load", {.summary = "running and waiting requests"}, load);
  add("/metrics", {.summary = "metrics in the text format of Prometheus"}, metrics_page);
  add("/v1/models", {.summary = "the served names"}, models);
  add("/v1/models/{*}", {.summary = "one served name"}, one_model);
}

}  // namespace sluice::server
