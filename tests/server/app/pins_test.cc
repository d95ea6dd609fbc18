// Pins over HTTP: progress while the prefix is computed, then what is held; list and delete.
#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::RawClient;
using http::status_of;
using testing::App;
using testing::body_of;
using testing::Json;
using testing::post;
using testing::stream;

const char* const kPins = "/sluice/pins";

std::string remove(const App& app, const std::string& path) {
  RawClient client(app.server->port());
  client.send("DELETE " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  return client.read_answer();
}

// The last event before [DONE], after growing progress.
Json pin(const App& app, Json body) {
  RawClient client(app.server->port());
  client.send(testing::post_text(kPins, body.dump()));
  const std::vector<std::string> events = testing::read_events(client);
  EXPECT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  int64_t last = -1;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json share = Json::parse(events[i]).at("prompt_progress");
    EXPECT_GE(share.at("processed").get<int64_t>(), last);
    last = share.at("processed").get<int64_t>();
  }
  return Json::parse(events[events.size() - 2]);
}

TEST(AppPins, AreMadeListedAndDeleted) {
  App app;
  app.serve();
  const std::string document(200, 'd');
  const Json made = pin(app, {{"name", "doc"}, {"prompt", document}});
  EXPECT_EQ(made.at("name"), "doc");
  EXPECT_EQ(made.at("num_tokens"), 192);
  EXPECT_EQ(made.at("num_blocks"), 12);
  EXPECT_GT(made.at("bytes"), 0);
  EXPECT_EQ(made.at("places"), Json({{"device", 192}, {"host", 0}, {"disk", 0}}));
  EXPECT_EQ(made.at("cache"), Json({{"device", 0}, {"host", 0}, {"disk", 0}}));
  Json listed = made;
  listed.erase("cache");
  EXPECT_EQ(body_of(app.get(kPins)), Json({{"pins", {listed}}}));
  EXPECT_EQ(body_of(app.get("/sluice/pins/doc")), listed);
  // The view of the page comes after the step.
  const Json shown = Json::parse(R"([{"name": "doc", "blocks": [[0, 12, "d"]], "disk": 0}])");
  Json view;
  EXPECT_TRUE(testing::happens_soon([&] {
    view = body_of(app.get("/sluice/state")).at("view").at("pins");
    return view == shown;
  })) << view;

  const Json answer = body_of(
      post(app, "/v1/completions", {{"prompt", document + " and more"}, {"max_tokens", 2}}));
  EXPECT_EQ(answer.at("usage").at("prompt_tokens_details").at("cached_tokens"), 192);

  EXPECT_EQ(status_of(remove(app, "/sluice/pins/doc")), 200);
  EXPECT_EQ(status_of(remove(app, "/sluice/pins/doc")), 404);
  EXPECT_EQ(status_of(app.get("/sluice/pins/doc")), 404);
  EXPECT_EQ(body_of(app.get(kPins)), Json({{"pins", Json::array()}}));
  EXPECT_TRUE(testing::happens_soon([&] { return app.is_free(); }));
}

// The ids of the messages are those that a chat with the same messages begins with.
TEST(AppPins, HoldConversations) {
  App app;
  app.serve();
  const Json message = {{"role", "user"}, {"content", std::string(150, 'q')}};
  const Json made = pin(app, {{"name", "talk"}, {"messages", {message}}});
  const Json answer =
      body_of(post(app, "/v1/chat/completions", {{"messages", {message}}, {"max_tokens", 1}}));
  EXPECT_EQ(answer.at("usage").at("prompt_tokens_details").at("cached_tokens"),
            made.at("num_tokens"));
}

TEST(AppPins, RefuseWhatTheyCannotDo) {
  App app;
  app.serve();
  const Json long_text = std::string(600, 'x');
  for (const Json& body :
       {Json({{"prompt", "x"}}), Json({{"name", ".x"}, {"prompt", "x"}}),
        Json({{"name", "a/b"}, {"prompt", "x"}}),
        Json({{"name", std::string(65, 'a')}, {"prompt", "x"}}), Json({{"name", "a"}}),
        Json({{"name", "a"}, {"prompt", ""}}), Json({{"name", "a"}, {"prompt", long_text}}),
        Json({{"name", 1}, {"prompt", "x"}})}) {
    EXPECT_EQ(status_of(post(app, kPins, body)), 400) << body.dump().substr(0, 80);
  }
  EXPECT_EQ(body_of(app.get(kPins)), Json({{"pins", Json::array()}}));
}

// A client that goes ends the computing, and nothing is held.
TEST(AppPins, OfClientsThatLeaveAreNotMade) {
  App app;
  app.serve();
  app.brake.pause_ms = 20;
  {
    RawClient client(app.server->port());
    client.send(
        testing::post_text(kPins, Json({{"name", "a"}, {"prompt", std::string(450, 'z')}}).dump()));
    client.read_until("prompt_progress");
  }
  EXPECT_TRUE(testing::happens_soon([&] { return app.is_free(); }));
  EXPECT_EQ(body_of(app.get(kPins)), Json({{"pins", Json::array()}}));
}

// The pin of that name before it is still there, and must not pass for the new one.
TEST(AppPins, ThatTakeTooLongAreNotMade) {
  App app(testing::cut_after(testing::milliseconds(500)));
  app.serve();
  const Json made = pin(app, {{"name", "doc"}, {"prompt", std::string(32, 'd')}});
  EXPECT_EQ(made.at("num_tokens"), 32);
  app.brake.pause_ms = 100;
  const Json late = pin(app, {{"name", "doc"}, {"prompt", std::string(450, 'z')}});
  ASSERT_TRUE(late.contains("error")) << late;
  EXPECT_EQ(late.at("error").at("type"), "ServiceUnavailableError");
  EXPECT_EQ(body_of(app.get("/sluice/pins/doc")).at("num_tokens"), 32);
  app.expect_soon("sluice:requests_aborted_total{reason=timeout}", 1);
}

// After a restart the same prefix comes from the store, and metrics say so.
TEST(AppPins, ComeFromTheStoreAfterARestart) {
  const testing::TemporaryStore store;
  testing::AppOptions options;
  options.engine.kv_store.dir = store.path().string();
  const Json body = {{"name", "doc"}, {"prompt", std::string(200, 'd')}};
  {
    App app(options);
    app.serve();
    pin(app, body);
    EXPECT_TRUE(testing::happens_soon(
        [&] { return body_of(app.get("/sluice/pins/doc")).at("places").at("disk") == 192; }));
    EXPECT_EQ(app.metric("sluice:store_skipped_blocks_total"), 0);
    EXPECT_GT(app.metric("sluice:store_write_bytes_total"), 0);
  }
  App app(options);
  app.serve();
  const Json made = pin(app, body);
  EXPECT_EQ(made.at("places").at("disk"), 192);
  EXPECT_EQ(made.at("cache"), Json({{"device", 0}, {"host", 0}, {"disk", 192}}));
  EXPECT_GT(app.metric("sluice:store_read_bytes_total"), 0);
  app.expect_soon("vllm:prompt_tokens_cached_by_source_total{source=disk}", 192);
  app.expect_soon("vllm:prompt_tokens_total", 200);
  EXPECT_EQ(app.metric("sluice:store_bad_files_total"), 0);
}

}  // namespace
}  // namespace sluice::server
