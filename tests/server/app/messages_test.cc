// The messages API over HTTP: its answers against those of chats, streams against bodies, and its
// own errors, whoever finds them.
#include <algorithm>
#include <mutex>

#include <gtest/gtest.h>

#include "server/app/rig.h"
#include "server/messages_client.h"

namespace sluice::server {
namespace {

using http::has;
using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::body_of;
using testing::happens_soon;
using testing::Json;
using testing::MessagesClient;
using testing::milliseconds;
using testing::post;
using testing::post_text;

const char* const kMessages = "/v1/messages";
const char* const kCount = "/v1/messages/count_tokens";

Json request_of(const std::string& text, int max_tokens) {
  return {{"messages", {{{"role", "user"}, {"content", text}}}},
          {"max_tokens", max_tokens},
          {"temperature", 0}};
}

// The whole answer to a request with this id, on a connection of its own.
std::string posted(const App& app, const Json& request, const std::string& fields = "",
                   const char* path = kMessages) {
  RawClient client(app.server->port());
  client.send(post_text(path, request.dump(), "X-Request-Id: r1\r\n" + fields));
  return request.value("stream", false) ? client.read_until("\r\n0\r\n\r\n") : client.read_answer();
}

// The chunks of a stream, joined.
std::string events_of(const std::string& answer) {
  EXPECT_EQ(status_of(answer), 200) << answer;
  std::string events;
  for (size_t at = answer.find("\r\n\r\n") + 4; at < answer.size();) {
    const size_t line = answer.find("\r\n", at);
    const size_t size = std::stoul(answer.substr(at, line - at), nullptr, 16);
    events += answer.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  return events;
}

// The error of an answer, whose form it checks.
Json error_of(const std::string& answer, int status) {
  EXPECT_EQ(status_of(answer), status) << answer;
  const Json body = body_of(answer);
  EXPECT_EQ(body.value("type", ""), "error") << answer;
  EXPECT_FALSE(body.value("request_id", "").empty()) << answer;
  return body.value("error", Json::object());
}

int64_t prompt_of(const Json& usage) {
  return usage.at("input_tokens").get<int64_t>() +
         usage.at("cache_read_input_tokens").get<int64_t>() +
         usage.at("cache_creation_input_tokens").get<int64_t>();
}

// The same prompt and the same tokens as in a chat; and a stream gives the body.
TEST(AppMessages, AnswersAsAChat) {
  App app;
  app.serve();
  const Json request = request_of("Who are you?", 25);
  const Json chat = body_of(post(app, "/v1/chat/completions", request));
  const std::string answer = posted(app, request);
  ASSERT_EQ(status_of(answer), 200) << answer;
  const Json body = body_of(answer);
  const Json& message = chat["choices"][0]["message"];
  EXPECT_EQ(body["content"], (Json::array({{{"type", "text"}, {"text", message["content"]}}})));
  EXPECT_EQ(body["id"], "msg_r1");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["stop_reason"],
            chat["choices"][0]["finish_reason"] == "length" ? "max_tokens" : "end_turn");
  EXPECT_EQ(prompt_of(body["usage"]), chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(body["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
  EXPECT_EQ(body_of(posted(app, request, "", kCount)).dump(),
            Json({{"input_tokens", prompt_of(body["usage"])}}).dump());
}

TEST(AppMessages, StreamsGiveTheBody) {
  App app;
  app.serve();
  Json request = request_of(std::string(300, 'x'), 40);
  for (const bool is_cached : {false, true}) {
    if (is_cached) posted(app, request);
    request["stream"] = true;
    MessagesClient client;
    client.read(events_of(posted(app, request)));
    EXPECT_TRUE(client.done());
    request["stream"] = false;
    const Json body = body_of(posted(app, request));
    nlohmann::json want = nlohmann::json::parse(body.dump());
    EXPECT_EQ(is_cached, client.message()["usage"]["cache_read_input_tokens"] > 0);
    // The stream may be the first to compute the prompt.
    EXPECT_EQ(prompt_of(Json::parse(client.message()["usage"].dump())), prompt_of(body["usage"]));
    want["usage"] = client.message()["usage"];
    EXPECT_EQ(client.message(), want);
    ASSERT_GE(client.pings().size(), 2U);
    EXPECT_FALSE(client.pings().front().contains("prompt_progress"));
    EXPECT_EQ(client.pings()[1]["prompt_progress"]["cache"] > 0, is_cached);
    const auto& last = client.pings().back()["prompt_progress"];
    EXPECT_EQ(last["processed"], last["total"]);
    EXPECT_EQ(last["total"], prompt_of(body["usage"]));
  }
}

// Agents send a constant for max_tokens, a beta in the query and fields of all kinds.
TEST(AppMessages, TakesWhatAgentsSend) {
  std::mutex mutex;
  std::vector<std::string> skipped;
  AppOptions options;
  options.log = [&](const metrics::RequestLogEntry& entry) {
    const std::lock_guard lock(mutex);
    skipped.emplace_back(entry.skipped_tools);
  };
  App app(options);
  app.serve();
  Json request = request_of("a", 32000);
  request["ignore_eos"] = true;
  request["system"] = Json::parse(
      R"([{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"s"}])");
  request["thinking"] = {{"type", "adaptive"}};
  request["tools"] = {{{"type", "web_search_20250305"}, {"name", "web_search"}}};
  const std::string answer =
      posted(app, request, "anthropic-version: 2023-06-01\r\nanthropic-beta: a-1,b-2\r\n",
             "/v1/messages?beta=true");
  ASSERT_EQ(status_of(answer), 200) << answer;
  const Json body = body_of(answer);
  EXPECT_EQ(prompt_of(body["usage"]) + body["usage"]["output_tokens"].get<int64_t>(), 512);
  EXPECT_EQ(body["stop_reason"], "max_tokens");
  request["system"] = "s";
  request.erase("tools");
  EXPECT_EQ(body_of(posted(app, request, "", kCount))["input_tokens"], prompt_of(body["usage"]));
  request["max_tokens"] = 0;
  const Json warmed = body_of(posted(app, request));
  EXPECT_EQ(warmed["content"], Json::array()) << warmed;
  EXPECT_EQ(warmed["usage"]["output_tokens"], 0);
  app.server.reset();
  std::ranges::sort(skipped);  // workers log in any order
  EXPECT_EQ(skipped, (std::vector<std::string>{"", "", "web_search_20250305"}));
}

TEST(AppMessages, StopsAtASequence) {
  App app;
  app.serve();
  Json request = request_of("Who are you?", 40);
  const std::string text = body_of(posted(app, request))["content"][0]["text"].get<std::string>();
  const size_t letter =
      text.find_first_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", 2);
  ASSERT_NE(letter, std::string::npos) << text;
  request["stop_sequences"] = {std::string(1, text[letter])};
  const Json body = body_of(posted(app, request));
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], request["stop_sequences"][0]);
  EXPECT_EQ(body["content"][0]["text"], text.substr(0, text.find(text[letter])));
}

// The last message is continued: its prompt ends with the text.
TEST(AppMessages, ContinuesTheAssistantsMessage) {
  App app;
  app.serve();
  Json request = request_of("a", 5);
  request["messages"].push_back({{"role", "assistant"}, {"content", "It is ("}});
  Json chat = request;
  chat["continue_final_message"] = true;
  const Json want = body_of(post(app, "/v1/chat/completions", chat));
  const Json body = body_of(posted(app, request));
  EXPECT_EQ(body["content"][0]["text"], want["choices"][0]["message"]["content"]) << want;
  EXPECT_EQ(prompt_of(body["usage"]), want["usage"]["prompt_tokens"]);
}

// Tools are in the prompt as the template of a model with tools writes them.
TEST(AppMessages, CountsToolsAndTheirResults) {
  AppOptions options;
  options.engine.chat_template =
      testing::source_dir() / "tests/golden/tokenizer/templates/qwen2.5.jinja";
  App app(options);
  app.serve();
  Json request = request_of("a", 5);
  request["tools"] = Json::parse(
      R"([{"name":"f","description":"d","input_schema":{"type":"object","properties":{}}}])");
  request["messages"].push_back(
      Json::parse(R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f",)"
                  R"("input":{"a":1}}]})"));
  request["messages"].push_back(Json::parse(
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]})"));
  const Json same = Json::parse(
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":)"
      R"([{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"r"}],"tools":[{"type":"function","function":)"
      R"({"name":"f","description":"d","parameters":{"type":"object","properties":{}}}}]})");
  const Json counted = body_of(posted(app, request, "", kCount));
  EXPECT_EQ(counted["input_tokens"], body_of(post(app, "/tokenize", same))["count"]) << counted;
  const Json error = error_of(posted(app, request), 400);
  EXPECT_EQ(error["message"],
            "prompt is too long: " + counted["input_tokens"].dump() + " tokens > 511 maximum");
}

TEST(AppMessages, ErrorsHaveItsForm) {
  AppOptions options;
  options.gate.keys = {"k"};
  options.http.body_bytes = 2000;
  App app(options);
  const std::string key = "x-api-key: k\r\n";
  const Json request = request_of("a", 1);
  EXPECT_EQ(error_of(posted(app, request, key), 503)["type"], "overloaded_error");
  app.serve();
  EXPECT_EQ(status_of(posted(app, request, key)), 200);
  EXPECT_EQ(status_of(posted(app, request, "Authorization: Bearer k\r\n")), 200);
  EXPECT_EQ(error_of(posted(app, request), 401)["type"], "authentication_error");
  EXPECT_EQ(error_of(posted(app, request, "", kCount), 401)["type"], "authentication_error");
  EXPECT_EQ(error_of(posted(app, request, key + "Origin: http://b.example\r\n"), 403)["type"],
            "permission_error");
  Json other = request;
  other["model"] = "claude";
  EXPECT_EQ(error_of(posted(app, other, key), 404)["type"], "not_found_error");
  Json unlimited = request;
  unlimited.erase("max_tokens");
  const Json missing = error_of(posted(app, unlimited, key), 400);
  EXPECT_EQ(missing["type"], "invalid_request_error");
  EXPECT_TRUE(missing["message"].get<std::string>().starts_with("max_tokens is missing"));
  EXPECT_EQ(error_of(posted(app, request_of(std::string(600, 'x'), 1), key), 400)["type"],
            "invalid_request_error");
  EXPECT_EQ(error_of(posted(app, request_of(std::string(3000, 'x'), 1), key), 413)["type"],
            "request_too_large");
  RawClient raw(app.server->port());
  raw.send(post_text(kMessages, "{", key));
  EXPECT_EQ(error_of(raw.read_answer(), 400)["type"], "invalid_request_error");
  raw.send("GET /v1/messages HTTP/1.1\r\nHost: localhost\r\n" + key + "\r\n");
  EXPECT_EQ(error_of(raw.read_answer(), 405)["type"], "invalid_request_error");
}

// Before the headers a status, after them an event; a drain is an error, since no stop_reason says
// that the server cut an answer short.
TEST(AppMessages, ADrainIsAnError) {
  App app;
  app.serve();
  app.brake.pause_ms = 5;
  Json request = request_of("a", 400);
  request["ignore_eos"] = true;
  RawClient waiting(app.server->port()), streaming(app.server->port());
  waiting.send(post_text(kMessages, request.dump()));
  request["stream"] = true;
  streaming.send(post_text(kMessages, request.dump()));
  streaming.read_until("content_block_delta");
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 2; }));
  std::thread drain([&] { app.server->drain(milliseconds(50)); });
  const std::string rest = streaming.read_all();
  EXPECT_TRUE(has(rest,
                  "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
                  "\"overloaded_error\""))
      << rest;
  EXPECT_FALSE(has(rest, "message_stop")) << rest;
  EXPECT_EQ(error_of(waiting.read_all(), 503)["type"], "overloaded_error");
  waiting.close_now();
  streaming.close_now();
  drain.join();
}

// No stop_reason says it, and an error would make clients send the request again.
TEST(AppMessages, AnAnswerThatTakesTooLongIsCut) {
  App app(testing::cut_after(milliseconds(200)));
  app.serve();
  app.brake.pause_ms = 5;
  Json request = request_of("a", 400);
  request["ignore_eos"] = true;
  const Json body = body_of(posted(app, request));
  EXPECT_EQ(body["stop_reason"], "max_tokens") << body;
  EXPECT_LT(body["usage"]["output_tokens"], 400);
  request["stream"] = true;
  MessagesClient client;
  client.read(events_of(posted(app, request)));
  EXPECT_TRUE(client.done());
  EXPECT_EQ(client.message()["stop_reason"], "max_tokens") << client.message();
  app.expect_soon("sluice:requests_aborted_total{reason=timeout}", 2);
}

TEST(AppMessages, AFailedEngineIsAnError) {
  App app;
  app.serve();
  app.brake.pause_ms = 2;
  Json request = request_of("a", 400);
  request["ignore_eos"] = true;
  request["stream"] = true;
  RawClient client(app.server->port());
  client.send(post_text(kMessages, request.dump()));
  client.read_until("content_block_delta");
  app.brake.is_broken = true;
  const std::string rest = client.read_until("\r\n0\r\n\r\n");
  EXPECT_TRUE(
      has(rest, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""))
      << rest;
}

// A client that leaves cancels its request, as on the other routes.
TEST(AppMessages, AClientThatLeavesIsCancelled) {
  App app;
  app.serve();
  app.brake.pause_ms = 5;
  Json request = request_of("a", 400);
  request["ignore_eos"] = true;
  for (const bool is_stream : {false, true}) {
    request["stream"] = is_stream;
    RawClient client(app.server->port());
    client.send(post_text(kMessages, request.dump()));
    ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 1; }));
    client.close_now();
    EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
  }
  EXPECT_LT(app.service->snapshot().stats.num_generated_tokens, 2 * 400);
}

}  // namespace
}  // namespace sluice::server
