// The page at /, and the routes by which it sees the engine.
#include <gtest/gtest.h>

#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::has;
using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::body_of;
using testing::ends_done;
using testing::happens_soon;
using testing::Json;
using testing::long_request;
using testing::post;
using testing::post_text;

std::string get(const App& app, const std::string& path, const std::string& fields = "") {
  RawClient client(app.server->port());
  client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
  return client.read_answer();
}
constexpr const char* kGzip = "Accept-Encoding: gzip, br\r\n";

std::string etag_of(const App& app) {
  const std::string answer = get(app, "/", kGzip);
  const size_t begin = answer.find("ETag: ") + 6;
  return answer.substr(begin, answer.find("\r\n", begin) - begin);
}

TEST(AppPage, IsCompressedAndLoadsNothingFromElsewhere) {
  const App app;  // the page needs no model
  for (const auto& [path, type] : {std::pair{"/", "text/html"},
                                   {"/ui/app.js", "text/javascript"},
                                   {"/ui/pdf.worker.mjs", "text/javascript"},
                                   {"/ui/style.css", "text/css"}}) {
    const std::string answer = get(app, path, kGzip);
    EXPECT_EQ(status_of(answer), 200) << path;
    EXPECT_TRUE(has(answer, std::string("Content-Type: ") + type)) << answer;
    EXPECT_TRUE(has(answer, "Content-Encoding: gzip")) << path;
    EXPECT_TRUE(has(answer, "Content-Security-Policy: default-src 'self'")) << path;
    EXPECT_TRUE(has(answer, "\r\n\r\n\x1f\x8b")) << path;
  }
  EXPECT_EQ(status_of(get(app, "/")), 406) << "clients without gzip";
  EXPECT_EQ(status_of(get(app, "/ui/other.js", kGzip)), 404);
  EXPECT_EQ(status_of(get(app, "/ui/%2e%2e/app.js", kGzip)), 404);
}

TEST(AppPage, IsSentOnce) {
  const App app;
  const std::string etag = etag_of(app);
  EXPECT_EQ(etag.size(), 34U);
  const std::string again = get(app, "/", std::string(kGzip) + "If-None-Match: " + etag + "\r\n");
  EXPECT_EQ(status_of(again), 304);
  EXPECT_TRUE(again.ends_with("\r\n\r\n"));
  EXPECT_FALSE(has(again, "Content-Length")) << "it would be that of the page: " << again;
  EXPECT_EQ(status_of(get(app, "/", std::string(kGzip) + "If-None-Match: \"0\"\r\n")), 200);
}

TEST(AppPage, AnswersWithoutBodiesKeepTheConnection) {
  App app;
  app.serve();
  RawClient client(app.server->port());
  const std::string fields = " HTTP/1.1\r\nHost: localhost\r\n" + std::string(kGzip);
  for (const char* path : {"/", "/health", "/v1/models"}) {
    client.send("HEAD " + std::string(path) + fields + "\r\n");
    const std::string head = client.read_until("\r\n\r\n");
    EXPECT_EQ(status_of(head), 200) << path;
    const std::string answer = get(app, path, kGzip);
    const size_t length = answer.size() - answer.find("\r\n\r\n") - 4;
    EXPECT_TRUE(has(head, "Content-Length: " + std::to_string(length) + "\r\n")) << head;
  }
  client.send("GET /" + fields + "If-None-Match: " + etag_of(app) + "\r\n\r\n");
  EXPECT_EQ(status_of(client.read_until("\r\n\r\n")), 304);
  client.send("GET /live" + fields + "\r\n");
  EXPECT_EQ(status_of(client.read_answer()), 200) << "nothing lies between the answers";
  app.expect_soon("sluice:http_requests_total{route=/health,code=200}", 2);
}

TEST(AppPage, AsksForTheKeyByItself) {
  App app({.gate = {.keys = {"secret"}}});
  app.serve();
  EXPECT_EQ(status_of(get(app, "/", kGzip)), 200);
  EXPECT_EQ(status_of(get(app, "/ui/app.js", kGzip)), 200);
  for (const char* path : {"/sluice/state", "/sluice/events", "/sluice/timeline"}) {
    EXPECT_EQ(status_of(get(app, path)), 401) << path;
  }
  EXPECT_EQ(status_of(get(app, "/sluice/state", "x-api-key: secret\r\n")), 200);
}

TEST(AppPage, CanBeLeftOut) {
  AppOptions options;
  options.has_page = false;
  const App app(options);
  EXPECT_EQ(status_of(get(app, "/", kGzip)), 404);
  EXPECT_EQ(status_of(get(app, "/ui/app.js", kGzip)), 404);
}

TEST(AppWatch, StateHasTheEngine) {
  App app;
  EXPECT_EQ(status_of(get(app, "/sluice/state")), 503);
  EXPECT_EQ(status_of(get(app, "/sluice/events")), 503);
  app.serve();
  post(app, "/v1/completions", {{"prompt", std::string(100, 'x')}, {"max_tokens", 4}, {"seed", 1}});
  Json state;
  // The answer may come before the step's view.
  ASSERT_TRUE(happens_soon([&] {
    state = body_of(get(app, "/sluice/state"));
    return state["view"]["sequences"].empty();
  }));
  EXPECT_EQ(state["model"], "tiny");
  EXPECT_EQ(state["max_model_len"], 512);
  EXPECT_EQ(state["timeline"], false);
  EXPECT_TRUE(state["warnings"].is_array());
  const Json& view = state["view"];
  EXPECT_EQ(view["tokens"]["computed"], 100);
  EXPECT_EQ(view["tokens"]["generated"], 4);
  ASSERT_EQ(view["kept"].size(), 1U) << view;
  int64_t num_kept = 0;
  for (const Json& run : view["kept"][0]) {
    EXPECT_EQ(run[2], "d");
    num_kept += run[1].get<int64_t>();
  }
  EXPECT_EQ(num_kept, 103 / view["kv"]["block_tokens"].get<int64_t>());
  EXPECT_EQ(view["kv"]["blank"].get<int64_t>() + num_kept, view["kv"]["blocks"]);
}

TEST(AppWatch, EventsFollowARequestAndEndWithTheServer) {
  App app;
  app.serve();
  app.brake.pause_ms = 1;
  RawClient watcher(app.server->port());
  watcher.send("GET /sluice/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string head = watcher.read_until("\n\n");
  EXPECT_TRUE(has(head, "text/event-stream")) << head;
  EXPECT_TRUE(has(head, "\"sequences\":[]")) << head;
  RawClient client(app.server->port());
  client.send(post_text("/v1/completions", long_request(true).dump()));
  const std::string request = "\"prompt\":50,";
  EXPECT_TRUE(watcher.read_until(request).ends_with(request));
  app.brake.pause_ms = 0;
  EXPECT_TRUE(ends_done(client));
  watcher.read_until("\"sequences\":[]");
  app.server->drain(std::chrono::seconds(1));
  EXPECT_TRUE(watcher.read_until("\r\n0\r\n\r\n").ends_with("\r\n0\r\n\r\n"))
      << "the end of the stream";
}

TEST(AppWatch, ATimelineIsForThoseWhoAskedForOne) {
  AppOptions options;
  options.engine.timeline_ring = true;
  App app(options);
  app.serve();
  for (const char* wrong : {"ms=0", "ms=2001", "ms=", "ms=1x", "s=1"}) {
    EXPECT_EQ(status_of(get(app, std::string("/sluice/timeline?") + wrong)), 400) << wrong;
  }
  // The engine of the rig has a device of its own, to which no ring is attached.
  EXPECT_EQ(status_of(get(app, "/sluice/timeline?ms=2000")), 404);
}

}  // namespace
}  // namespace sluice::server
