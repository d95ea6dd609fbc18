// What the server says of itself in each phase, and the routes of the tokenizer.
#include <algorithm>
#include <cctype>
#include <mutex>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "events/zmq_library.h"
#include "server/app/rig.h"
#include "support/sanitizer.h"

namespace sluice::server {
namespace {

using http::has;
using http::status_of;
using testing::App;
using testing::app_engine;
using testing::body_of;
using testing::Json;
using testing::post;

TEST(AppStatus, WhileItLoadsSaysHowFarItIs) {
  App app;
  EXPECT_EQ(app.server->state().phase(), ServerState::Phase::kLoading);
  app.server->set_loading({.stage = LoadProgress::Stage::kWeights, .share = 0.25});
  const std::string health = app.get("/health");
  EXPECT_EQ(status_of(health), 503);
  EXPECT_TRUE(has(health, "\r\nRetry-After: ")) << health;
  EXPECT_EQ(body_of(health), (Json{{"status", "loading"}, {"stage", "weights"}, {"share", 0.25}}));
  EXPECT_EQ(status_of(app.get("/live")), 200);
  EXPECT_EQ(body_of(app.get("/load")), (Json{{"server_load", 0}}));
  for (const std::string& refused :
       {app.get("/v1/models"), app.get("/v1/models/tiny"), app.get("/tokenizer_info"),
        post(app, "/v1/completions", {{"prompt", "a"}}),
        post(app, "/tokenize", {{"prompt", "a"}})}) {
    EXPECT_EQ(status_of(refused), 503) << refused;
    EXPECT_TRUE(has(refused, "\r\nRetry-After: ")) << refused;
    EXPECT_EQ(body_of(refused)["error"]["type"], "ServiceUnavailableError");
  }
  app.expect_soon("vllm:admission_rejections_total{reason=loading}", 5);
}

TEST(AppStatus, WhenItServesListsItsModel) {
  App app;
  app.serve();
  EXPECT_EQ(body_of(app.get("/health")), (Json{{"status", "ok"}}));
  const Json list = body_of(app.get("/v1/models"));
  ASSERT_EQ(list["data"].size(), 2U) << list;
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][1]["id"], "alias");
  EXPECT_EQ(body_of(app.get("/v1/models/tiny")), list["data"][0]);
  const Json& model = list["data"][0];
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["owned_by"], "sluice");
  EXPECT_EQ(model["max_model_len"], 512);
  EXPECT_TRUE(model["parent"].is_null());
  EXPECT_EQ(status_of(app.get("/v1/models/other")), 404);
  EXPECT_EQ(body_of(app.get("/v1/models/other"))["error"]["param"], "model");
  EXPECT_EQ(body_of(app.get("/version")), (Json{{"version", "1.2.3"}}));
}

TEST(AppStatus, KnowsPathsAndMethods) {
  App app;
  EXPECT_EQ(status_of(app.get("/v1/nothing")), 404);
  const std::string wrong = app.get("/v1/completions");
  EXPECT_EQ(status_of(wrong), 405);
  EXPECT_TRUE(has(wrong, "\r\nAllow: POST\r\n")) << wrong;
  EXPECT_EQ(status_of(post(app, "/health", {})), 405);
}

// Routes are counted by pattern and status; of refused requests no token is.
TEST(AppStatus, CountsWhatItAnswered) {
  App app;
  app.serve();
  app.get("/health");
  app.get("/health");
  post(app, "/v1/completions", {{"prompt", "abc"}, {"max_tokens", 5}, {"ignore_eos", true}});
  post(app, "/v1/completions", {{"prompt", "abc"}, {"max_tokens", -1}});
  app.expect_soon("sluice:http_requests_total{route=/health,code=200}", 2);
  app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=400}", 1);
  app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=200}", 1);
  app.expect_soon("vllm:prompt_tokens_total", 3);
  app.expect_soon("vllm:generation_tokens_total", 5);
  app.expect_soon("vllm:request_success_total{finished_reason=length}", 1);
  app.expect_soon("vllm:iteration_tokens_total_sum", 3 + 5);
  app.expect_soon("vllm:iteration_tokens_total_count", 5);  // the prompt's step, four tokens
}

TEST(AppStatus, CountsWhatKvOffloadMoves) {
  EngineOptions engine = app_engine();
  engine.kv.offload = KvOffload::kChunked;
  engine.kv.host_bytes = 16 << 20;
  engine.kv.device_bytes = 0;
  App app({.engine = engine});
  app.serve();
  post(app, "/v1/completions", {{"prompt", std::string(300, 'k')}, {"max_tokens", 2}});
  EXPECT_GT(app.metric("sluice:kv_transfer_bytes_total{direction=h2d}"), 0);
  EXPECT_GT(app.metric("sluice:kv_transfer_bytes_total{direction=d2h}"), 0);
  EXPECT_GE(app.metric("sluice:slot_waits_total"), 0);
}

// Prompts of three blocks and a part; the same again changes nothing in the cache.
TEST(AppStatus, CountsKvEvents) {
  if (!has_zmq()) GTEST_SKIP() << "no libzmq";
  if (kThreadSanitized) GTEST_SKIP() << "event_publisher_test says why";
  EngineOptions engine = app_engine();
  engine.kv.block_size = 16;
  engine.kv_events.endpoint = "tcp://127.0.0.1:*";
  App app({.engine = engine});
  app.serve();
  EXPECT_EQ(app.metric("sluice:kv_events_total"), 0);
  for (int i = 0; i < 2; ++i) {
    post(app, "/v1/completions", {{"prompt", std::string(50, 'k')}, {"max_tokens", 1}});
    app.expect_soon("sluice:kv_events_total", 1);
  }
  EXPECT_EQ(app.metric("sluice:kv_events_dropped_total"), 0);
}

// Gateways take num_gpu_blocks for the room of a replica: it is what limits admission, wherever the
// blocks are.
TEST(AppStatus, ShowsTheBlocksThatLimitAdmission) {
  for (const KvOffload offload : {KvOffload::kOff, KvOffload::kChunked}) {
    EngineOptions engine = app_engine();
    engine.kv.offload = offload;
    App app({.engine = engine});
    app.serve();
    const KvFacts kv = app.service->kv_facts();
    ASSERT_GT(kv.num_blocks, 0);
    ASSERT_EQ(kv.on_host, offload == KvOffload::kChunked);
    EXPECT_EQ(app.metric(fmt::format(
                  "vllm:cache_config_info{{block_size={},num_gpu_blocks={},num_cpu_blocks={}}}",
                  kv.block_tokens, kv.num_blocks, kv.on_host ? kv.num_blocks : 0)),
              1);
  }
}

// Also requests that reach no route; of paths that the client made up there is one label for all.
TEST(AppStatus, CountsAndLogsWhatItRefuses) {
  std::mutex mutex;
  std::vector<metrics::RequestLogEntry> lines;
  testing::AppOptions options;
  options.gate.keys = {"k"};
  options.log = [&](const metrics::RequestLogEntry& entry) {
    const std::lock_guard lock(mutex);
    lines.push_back(entry);
  };
  App app(options);
  app.serve();
  EXPECT_EQ(status_of(app.get("/v1/models")), 401);
  EXPECT_EQ(status_of(app.get("/made/up")), 404);
  EXPECT_EQ(status_of(app.get("/made/up/too")), 404);
  EXPECT_EQ(status_of(app.get("/v1/completions")), 405);
  http::RawClient client(app.server->port());
  client.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(status_of(client.read_answer()), 411);
  app.expect_soon("sluice:http_requests_total{route=/v1/models,code=401}", 1);
  app.expect_soon("sluice:http_requests_total{route=unknown,code=404}", 2);
  app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=405}", 1);
  app.expect_soon("sluice:http_requests_total{route=unknown,code=411}", 1);
  app.server.reset();
  ASSERT_EQ(lines.size(), 5U);
  std::set<std::string> unknown;
  for (const metrics::RequestLogEntry& line : lines) {
    EXPECT_FALSE(has(line.route, "made")) << line.route;
    if (line.route == "unknown") {
      unknown.insert(line.method + " " + line.path);
    } else {
      EXPECT_EQ(line.method + line.path, "");
    }
    EXPECT_EQ(line.id.size(), 32U) << "as X-Request-Id of the answer";
    EXPECT_FALSE(line.summary);
  }
  EXPECT_TRUE(unknown.contains("GET /made/up") && unknown.contains("GET /made/up/too"));
}

// By number alone: a client may send any name.
TEST(AppStatus, CountsFieldsThatItDoesNotKnow) {
  App app;
  app.serve();
  const auto count = [&] { return app.metric("sluice:unknown_request_fields_total"); };
  post(app, "/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}, {"user", "me"}});
  EXPECT_EQ(count(), 0) << "a hint is known";
  post(app, "/v1/completions", {{"prompt", "a"}, {"evil\"} 1\nx", 1}, {"max_tokens", 1}});
  post(app, "/tokenize", {{"prompt", "a"}, {"one", 1}, {"two", nullptr}});
  Json chat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"three", 3}};
  post(app, "/apply-template", chat);
  chat["max_tokens"] = 1;
  chat["stream"] = true;
  chat["stream_options"] = {{"four", 4}};
  post(app, "/v1/chat/completions", chat);
  EXPECT_EQ(count(), 6);
  EXPECT_FALSE(has(app.get("/metrics"), "evil"));
}

// One runs and two wait.
TEST(AppStatus, LoadIsWhatRunsAndWaits) {
  App app({.engine = [] {
    EngineOptions options = testing::app_engine();
    options.max_num_seqs = 1;
    return options;
  }()});
  app.serve();
  app.brake.pause_ms = 1;
  std::vector<std::unique_ptr<http::RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<http::RawClient>(app.server->port()));
    clients.back()->send(testing::post_text("/v1/completions", testing::long_request(true).dump()));
    clients.back()->read_until("data: ");
  }
  EXPECT_EQ(body_of(app.get("/load")), (Json{{"server_load", 3}}));
}

// What the router answers and the description has are the same: each path knows exactly the methods
// that are described.
TEST(AppStatus, DescribesItsRoutes) {
  App app({.gate = {.keys = {"k"}}});
  const std::string answer = app.get("/openapi.json");
  ASSERT_EQ(status_of(answer), 200) << "without a key, and before there is a model";
  const Json description = body_of(answer);
  const Json& paths = description["paths"];
  EXPECT_EQ(description["info"]["version"], "1.2.3");
  for (const auto& [path, operations] : paths.items()) {
    std::string url = path;
    if (const size_t at = url.find("{name}"); at != url.npos) url.replace(at, 6, "tiny");
    http::RawClient client(app.server->port());
    client.send("PATCH " + url + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    const std::string refused = client.read_answer();
    std::string methods;
    for (const auto& [method, operation] : operations.items()) {
      methods += (methods.empty() ? "" : ", ") + method;
    }
    std::ranges::transform(methods, methods.begin(),
                           [](unsigned char c) { return std::toupper(c); });
    // HTTP has HEAD wherever there is GET; a description would only repeat it.
    if (has(refused, "HEAD")) methods += ", HEAD";
    EXPECT_TRUE(has(refused, "Allow: " + methods + "\r\n")) << path << refused;
  }
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/v1/completions/render",
        "/v1/chat/completions/render", "/v1/models", "/v1/models/{name}", "/tokenize",
        "/detokenize", "/apply-template", "/tokenizer_info", "/load", "/metrics", "/health",
        "/live", "/ping", "/version", "/openapi.json"}) {
    EXPECT_TRUE(paths.contains(path)) << path;
  }
}

// Two ways to one result: the ids of a text are those of its bytes, and lead back to it.
TEST(AppText, TokenizesBackAndForth) {
  App app;
  app.serve();
  const Json there =
      body_of(post(app, "/tokenize", {{"prompt", "Az 9"}, {"return_token_strs", true}}));
  EXPECT_EQ(there["tokens"], (Json{65, 122, 32, 57}));
  EXPECT_EQ(there["count"], 4);
  EXPECT_EQ(there["max_model_len"], 512);
  EXPECT_EQ(there["token_strs"], (Json{"A", "z", " ", "9"}));
  EXPECT_EQ(body_of(post(app, "/detokenize", {{"tokens", there["tokens"]}})),
            (Json{{"prompt", "Az 9"}}));
  EXPECT_EQ(status_of(post(app, "/detokenize", {{"tokens", {160}}})), 400)
      << "no token of the model";
  EXPECT_EQ(status_of(post(app, "/tokenize", {{"prompt", "a"}, {"model", "other"}})), 404);
  EXPECT_EQ(status_of(app.get("/tokenizer_info")), 200);
}

TEST(AppText, WritesATemplateAsAChatGetsIt) {
  App app;
  app.serve();
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  const Json text = body_of(post(app, "/apply-template", chat));
  EXPECT_EQ(text["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const Json ids = body_of(post(app, "/tokenize", chat));
  EXPECT_EQ(body_of(post(app, "/detokenize", {{"tokens", ids["tokens"]}})), text);
  Json request = chat;
  request["max_tokens"] = 1;
  const Json answer = body_of(post(app, "/v1/chat/completions", request));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], ids["count"]) << answer;
}

}  // namespace
}  // namespace sluice::server
