// Ends that are not the answer's own: clients that leave or do not read, refusals, an engine that
// fails, a drain.
#include <array>
#include <atomic>
#include <mutex>
#include <optional>

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
using testing::joined;
using testing::Json;
using testing::kCompletions;
using testing::long_request;
using testing::milliseconds;
using testing::post;
using testing::post_text;

// A second request waits until the first has ended.
AppOptions one_at_a_time(ServiceLimits limits = {}) {
  AppOptions options{.limits = limits};
  options.engine.max_num_seqs = 1;
  return options;
}

// A client that has sent its request and reads nothing yet.
std::unique_ptr<RawClient> started(const App& app, const Json& request) {
  auto client = std::make_unique<RawClient>(app.server->port());
  client->send(post_text(kCompletions, request.dump()));
  return client;
}

enum class Leave { kFin, kReset };

void leave(RawClient& client, Leave how) {
  if (how == Leave::kFin) client.close_now();
  if (how == Leave::kReset) client.reset();
}

// A request whose client leaves frees its memory soon; n choices of it leave together.
class Disconnect : public ::testing::TestWithParam<std::tuple<bool, Leave>> {
 protected:
  void expect_freed(App& app) {
    EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
    app.expect_soon("sluice:requests_aborted_total{reason=disconnect}", 1);
    app.expect_soon("sluice:prefill_remaining_tokens", 0);
    app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=499}", 1);
  }
  bool is_stream() const { return std::get<0>(GetParam()); }
  Leave how() const { return std::get<1>(GetParam()); }
};

// Eight steps of a prompt, of which the first runs: no token may come of it.
TEST_P(Disconnect, InPrefill) {
  App app;
  app.serve();
  app.brake.pause_ms = 15;
  Json request = long_request(is_stream());
  request["prompt"] = std::string(500, 'x');
  request["max_tokens"] = 10;
  request["n"] = 2;
  const auto client = started(app, request);
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running > 0; }));
  leave(*client, how());
  app.brake.pause_ms = 5;
  expect_freed(app);
  EXPECT_EQ(app.service->snapshot().stats.num_generated_tokens, 0);
}

// Three choices that have tokens, and hundreds to go.
TEST_P(Disconnect, InDecode) {
  App app;
  app.serve();
  app.brake.pause_ms = 5;
  Json request = long_request(is_stream());
  request["n"] = 3;
  const auto client = started(app, request);
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().stats.num_generated_tokens > 6; }));
  leave(*client, how());
  expect_freed(app);
  EXPECT_LT(app.service->snapshot().stats.num_generated_tokens, 3 * 450);
}

// It is taken out of the queue although nothing else ends.
TEST_P(Disconnect, WhileItWaits) {
  App app(one_at_a_time());
  app.serve();
  app.brake.pause_ms = 5;
  const auto first = started(app, long_request(true));
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 1; }));
  const auto client = started(app, long_request(is_stream()));
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_waiting == 1; }));
  leave(*client, how());
  EXPECT_TRUE(happens_soon([&] { return app.service->snapshot().num_waiting == 0; }));
  EXPECT_EQ(app.service->snapshot().num_running, 1) << "the other goes on";
  app.brake.pause_ms = 0;
  EXPECT_TRUE(ends_done(*first));
  expect_freed(app);
}

INSTANTIATE_TEST_SUITE_P(Ways, Disconnect,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Leave::kFin, Leave::kReset)));

// HTTP lets a client close its sending side and read on.
TEST(AppEnds, AHalfClosedClientGetsItsAnswer) {
  App app;
  app.serve();
  app.brake.pause_ms = 5;
  for (const bool is_stream : {false, true}) {
    Json request = {{"prompt", std::string(300, 'h')}, {"max_tokens", 20}, {"stream", is_stream}};
    request["ignore_eos"] = true;
    const auto client = started(app, request);
    client->half_close();
    const std::string answer = client->read_all();
    EXPECT_TRUE(has(answer, "HTTP/1.1 200 OK")) << answer;
    EXPECT_TRUE(has(answer, is_stream ? "data: [DONE]" : "\"completion_tokens\":20")) << answer;
  }
  EXPECT_EQ(app.metric("sluice:requests_aborted_total{reason=disconnect}"), 0);
}

// Clients that leave while their requests are read, tokenized or submitted: before, between and
// after the moments in which the ids of the choices are known.
TEST(AppEnds, AClientThatLeavesAtOnceHoldsNothing) {
  App app;
  app.serve();
  app.brake.pause_ms = 5;
  for (int i = 0; i < 20; ++i) {
    const auto client = started(app, long_request(i % 2 == 0));
    client->close_now();  // a reset would take back what was sent
  }
  app.expect_soon("sluice:requests_aborted_total{reason=disconnect}", 20);
  app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=499}", 20);
  EXPECT_TRUE(app.is_free());
  EXPECT_LT(app.service->snapshot().stats.num_generated_tokens, 20 * 450);
}

// A log that takes its time holds both workers while the client comes and goes: none of its choices
// may reach the engine, and its end is counted and logged as that of a client that left.
TEST(AppEnds, AClientThatLeftBeforeItsTurnSubmitsNothing) {
  std::atomic<bool> is_held = true;
  std::atomic<int> num_held = 0;
  std::mutex mutex;
  std::vector<metrics::RequestLogEntry> lines;
  App app({.log = [&](const metrics::RequestLogEntry& entry) {
    if (entry.route == "/tokenize") ++num_held;
    while (is_held) std::this_thread::sleep_for(milliseconds(1));
    const std::lock_guard lock(mutex);
    lines.push_back(entry);
  }});
  app.serve();
  RawClient first(app.server->port()), second(app.server->port());
  for (RawClient* client : {&first, &second}) {
    client->send(post_text("/tokenize", R"({"prompt": "a"})"));
    client->read_answer();
  }
  ASSERT_TRUE(happens_soon([&] { return num_held == 2; }));
  for (const bool is_stream : {false, true}) {
    Json request = long_request(is_stream);
    request["n"] = 8;
    const auto are_open = [&](size_t num) {
      return happens_soon([&] { return app.server->num_connections() == num; });
    };
    const auto client = started(app, request);
    EXPECT_TRUE(are_open(3));
    client->reset();
    EXPECT_TRUE(are_open(2));
  }
  is_held = false;
  app.expect_soon("sluice:requests_aborted_total{reason=disconnect}", 2);
  EXPECT_EQ(app.service->snapshot().num_accepted, 0);
  app.server.reset();
  ASSERT_EQ(lines.size(), 4U);
  for (const metrics::RequestLogEntry& line : lines) {
    if (line.route == "/tokenize") continue;
    EXPECT_EQ(line.status, 499);
    EXPECT_EQ(line.aborted, metrics::AbortReason::kDisconnect);
    EXPECT_FALSE(line.summary);
  }
}

// The answer says when to come again, also to who asked for a stream; others are not touched.
TEST(AppEnds, RefusesWhatWouldWaitTooLong) {
  App app(one_at_a_time({.max_waiting = 1}));
  app.serve();
  app.brake.pause_ms = 2;
  const auto first = started(app, long_request(true));
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 1; }));
  const auto second = started(app, long_request(true));
  second->read_until("data: ");
  for (const bool is_stream : {false, true}) {
    const std::string answer = post(app, kCompletions, long_request(is_stream));
    EXPECT_EQ(status_of(answer), 429) << answer;
    EXPECT_TRUE(has(answer, "\r\nRetry-After: ")) << answer;
    EXPECT_EQ(body_of(answer)["error"]["type"], "RateLimitError");
  }
  app.expect_soon("vllm:admission_rejections_total{reason=waiting}", 2);
  app.brake.pause_ms = 0;
  EXPECT_TRUE(ends_done(*first));
  EXPECT_TRUE(ends_done(*second));
}

// A client that is told to try again would do it without end.
TEST(AppEnds, MoreThanMayEverWaitIsTheClientsError) {
  App app(one_at_a_time({.max_waiting = 5, .max_waiting_tokens = 60}));
  app.serve();
  Json many = {{"prompt", {"a", "b", "c"}}, {"n", 2}, {"max_tokens", 1}};
  Json large = {{"prompt", std::string(21, 'x')}, {"n", 3}, {"max_tokens", 1}};
  const std::pair<Json*, std::pair<const char*, const char*>> table[] = {
      {&many, {" 6 ", " 5 "}}, {&large, {" 63 ", " 60 "}}};
  for (const auto& [request, numbers] : table) {
    for (const bool is_stream : {false, true}) {
      (*request)["stream"] = is_stream;
      const std::string answer = post(app, kCompletions, *request);
      EXPECT_EQ(status_of(answer), 400) << answer;
      EXPECT_FALSE(has(answer, "Retry-After")) << answer;
      EXPECT_TRUE(has(answer, numbers.first) && has(answer, numbers.second)) << answer;
    }
    (*request)["n"] = 1;
    (*request)["stream"] = false;
    EXPECT_EQ(status_of(post(app, kCompletions, *request)), 200);
  }
  large["prompt"] = std::string(61, 'x');
  EXPECT_EQ(status_of(post(app, kCompletions, large)), 200) << "one prompt may be as long as it is";
  EXPECT_EQ(app.service->snapshot().num_accepted, 5);
}

// Three choices wait, the fourth is refused: one answer, and nothing of it is computed.
TEST(AppEnds, ARefusalTakesBackTheChoicesBeforeIt) {
  App app(one_at_a_time({.max_waiting = 4}));
  app.serve();
  app.brake.pause_ms = 2;
  const auto first = started(app, long_request(true));
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 1; }));
  const auto second = started(app, long_request(true));
  second->read_until("data: ");
  app.brake.is_held = true;
  for (const bool is_stream : {false, true}) {
    Json request = long_request(is_stream);
    request["n"] = 4;
    EXPECT_EQ(status_of(post(app, kCompletions, request)), 429);
    app.brake.is_held = false;
    EXPECT_TRUE(happens_soon([&] { return app.service->snapshot().num_waiting == 1; }));
    app.brake.is_held = true;
  }
  app.brake.is_held = false;
  app.brake.pause_ms = 0;
  EXPECT_TRUE(ends_done(*first));
  EXPECT_TRUE(ends_done(*second));
  EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
  EXPECT_EQ(app.service->snapshot().stats.num_generated_tokens, 2 * 450);
  app.expect_soon("vllm:generation_tokens_total", 2 * 450);
  app.expect_soon("sluice:prefill_remaining_tokens", 0);
}

// Streams that have begun say it in an event, bodies by their status; then the server is dead.
TEST(AppEnds, AFailedEngineEndsEveryAnswerWithItsError) {
  App app;
  app.serve();
  app.brake.pause_ms = 2;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (const bool is_stream : {true, true, false}) {
    Json request = long_request(is_stream);
    request["n"] = 2;
    clients.push_back(started(app, request));
  }
  clients[0]->read_until("\"text\":");
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 6; }));
  app.brake.is_broken = true;
  for (int i = 0; i < 2; ++i) {
    const std::string rest = clients[i]->read_until("0\r\n\r\n");
    EXPECT_TRUE(has(rest, "the clock stopped")) << rest;
    EXPECT_TRUE(has(rest, "data: {\"error\":")) << rest;
    EXPECT_TRUE(has(rest, "data: [DONE]\n\n\r\n0\r\n\r\n")) << rest;
    EXPECT_FALSE(has(rest.substr(rest.find("\"error\"") + 7), "\"error\"")) << "more than one";
  }
  const std::string body = clients[2]->read_answer();
  EXPECT_EQ(status_of(body), 500) << body;
  EXPECT_TRUE(has(body, "\r\nx-should-retry: false\r\n")) << body;
  const std::string health = app.get("/health");
  EXPECT_EQ(status_of(health), 503);
  EXPECT_EQ(body_of(health)["status"], "dead");
  EXPECT_EQ(status_of(post(app, kCompletions, long_request(false))), 503);
  app.expect_soon("vllm:request_success_total{finished_reason=error}", 6);
}

// What runs gets its limit and ends with what it has; what comes meanwhile is told to come later.
TEST(AppEnds, ADrainAbortsStreamsAfterItsLimit) {
  App app;
  app.serve();
  app.brake.pause_ms = 5;
  const auto streaming = started(app, long_request(true));
  const auto waiting = started(app, long_request(false));
  streaming->read_until("\"text\":");
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 2; }));
  std::thread drain([&] { app.server->drain(milliseconds(300)); });
  ASSERT_TRUE(
      happens_soon([&] { return app.server->state().phase() == ServerState::Phase::kDraining; }));
  EXPECT_EQ(body_of(app.get("/health"))["status"], "draining");
  const std::string late = post(app, kCompletions, long_request(true));
  EXPECT_EQ(status_of(late), 503);
  EXPECT_TRUE(has(late, "\r\nRetry-After: ")) << late;
  const std::string rest = streaming->read_all();
  EXPECT_TRUE(has(rest, "\"finish_reason\":\"abort\"")) << rest;
  EXPECT_TRUE(has(rest, "data: [DONE]\n\n\r\n0\r\n\r\n")) << rest;
  const std::string body = waiting->read_all();
  EXPECT_EQ(body_of(body)["choices"][0]["finish_reason"], "abort") << body;
  streaming->close_now();
  waiting->close_now();
  drain.join();
  EXPECT_TRUE(app.is_free());
}

// It ends with what it has, as after a drain; a status of 408 would make clients send it again.
TEST(AppEnds, AnAnswerThatTakesTooLongEndsWithWhatItHas) {
  App app(testing::cut_after(milliseconds(200)));
  app.serve();
  app.brake.pause_ms = 5;
  const auto streaming = started(app, long_request(true));
  const auto whole = started(app, long_request(false));
  const std::string rest = streaming->read_until("\r\n0\r\n\r\n");
  EXPECT_TRUE(has(rest, "\"finish_reason\":\"abort\"")) << rest;
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n")) << rest;
  const std::string body = whole->read_answer();
  EXPECT_EQ(status_of(body), 200) << body;
  EXPECT_EQ(body_of(body)["choices"][0]["finish_reason"], "abort") << body;
  EXPECT_LT(body_of(body)["usage"]["completion_tokens"], 450);
  EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
  app.expect_soon("sluice:requests_aborted_total{reason=timeout}", 2);
  app.brake.pause_ms = 0;
  Json next = long_request(true);
  next["max_tokens"] = 2;
  streaming->send(post_text(kCompletions, next.dump()));
  EXPECT_TRUE(has(streaming->read_until("\r\n0\r\n\r\n"), "\"length\"")) << "a time of its own";
}

// The other APIs say it in their own words: AppMessages, AppResponses and AppPins have the tests.
TEST(AppEnds, AChatThatTakesTooLongEndsWithWhatItHas) {
  App app(testing::cut_after(milliseconds(200)));
  app.serve();
  app.brake.pause_ms = 5;
  const Json request = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
                        {"max_tokens", 400},
                        {"ignore_eos", true}};
  const char* const path = "/v1/chat/completions";
  EXPECT_EQ(joined(testing::stream(app, path, request), 1).reasons[0], "abort");
  const Json body = body_of(post(app, path, request));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "abort") << body;
  EXPECT_LT(body["usage"]["completion_tokens"], 400);
}

// Within its limit a drain cuts nothing.
TEST(AppEnds, ADrainLetsAnswersEnd) {
  App app;
  app.serve();
  app.brake.pause_ms = 1;
  const auto client = started(app, long_request(true));
  client->read_until("\"text\":");
  app.brake.pause_ms = 0;
  std::thread drain([&] { app.server->drain(std::chrono::hours(1)); });
  const std::string rest = client->read_all();
  EXPECT_TRUE(has(rest, "\"finish_reason\":\"length\"")) << rest;
  client->close_now();
  drain.join();
}

TEST(AppEnds, ADrainWithoutWorkReturnsAtOnce) {
  App app;
  app.serve();
  const auto begin = std::chrono::steady_clock::now();
  app.server->drain(std::chrono::hours(1));
  app.server->drain(std::chrono::hours(1));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::kSoon / 2);
}

// A log that takes its time, which the end of the server must not take away from under it. Its
// clients have left, so that nothing else keeps the server waiting.
TEST(AppEnds, TheServerEndsAfterTheLastLineOfItsLog) {
  struct Mark {
    std::array<char, 64> of_the_heap{};  // what a heap writes into memory that it has back
    volatile bool is_alive = true;
    ~Mark() { is_alive = false; }
  };
  std::atomic<int> num_begun = 0, num_logged = 0, num_dead = 0;
  {
    App app({.log = [&, mark = Mark()](const metrics::RequestLogEntry&) {
      ++num_begun;
      std::this_thread::sleep_for(milliseconds(100));
      if (!mark.is_alive) ++num_dead;
      ++num_logged;
    }});
    app.serve();
    for (int i = 0; i < 4; ++i) {
      RawClient client(app.server->port());
      client.send(post_text("/tokenize", R"({"prompt": "a"})"));
      client.read_answer();
    }
    ASSERT_TRUE(happens_soon([&] { return num_begun > 0; }));
  }
  EXPECT_EQ(num_logged, 4);
  EXPECT_EQ(num_dead, 0) << "the log was destroyed before its last line";
}

// More than its socket and the buffer hold waits for the one; the other gets all of its events. Its
// socket holds them, even if the machine lets it read none of them for a while.
TEST(AppEnds, ASlowClientIsCutAndOthersAreNot) {
  AppOptions options;
  options.http.client_buffer_bytes = 64 << 10;
  App app(options);
  app.serve();
  Json request = long_request(true);
  request["logprobs"] = 20;
  request["n"] = 12;
  RawClient slow(app.server->port(), 2048);
  slow.send(post_text(kCompletions, request.dump()));
  slow.read_byte();
  request["n"] = 1;
  request.erase("logprobs");
  const auto events = testing::stream(app, kCompletions, request);
  EXPECT_EQ(joined(events, 1).reasons[0], "length");
  EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
  app.expect_soon("sluice:requests_aborted_total{reason=slow_client}", 1);
  EXPECT_FALSE(has(slow.read_all(), "[DONE]"));
}

}  // namespace
}  // namespace sluice::server
