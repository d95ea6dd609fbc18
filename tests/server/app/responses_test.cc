// Responses over HTTP against chats with the same prompt, and streams against bodies.
#include <algorithm>
#include <mutex>

#include <gtest/gtest.h>

#include "server/app/rig.h"
#include "server/responses/response_client.h"

namespace sluice::server {
namespace {

using http::has;
using http::RawClient;
using http::status_of;
using testing::App;
using testing::body_of;
using testing::happens_soon;
using testing::Json;
using testing::milliseconds;
using testing::post;
using testing::ResponseClient;

const char* const kResponses = "/v1/responses";

Json response_to(const App& app, const Json& request, const char* path = kResponses) {
  const std::string answer = post(app, path, request);
  EXPECT_EQ(status_of(answer), 200) << answer;
  return body_of(answer);
}

ResponseClient streamed(const App& app, const Json& request) {
  ResponseClient client;
  for (const std::string& event : testing::stream(app, kResponses, request)) {
    client.take(Json::parse(event));
  }
  EXPECT_GE(client.types().size(), 2U);
  return client;
}

// Without what is drawn for each answer, and without what the cache had.
Json comparable(Json response) {
  response.erase("id");
  response.erase("created_at");
  response["usage"].erase("input_tokens_details");
  for (Json& item : response["output"]) item.erase("id");
  return response;
}

std::string text_of(const Json& response) {
  std::string text;
  for (const Json& item : response["output"]) {
    for (const Json& part : item["content"]) text += part["text"].get<std::string>();
  }
  return text;
}

TEST(AppResponses, AnswersAsAChat) {
  App app;
  app.serve();
  const Json chat = response_to(app,
                                {{"messages",
                                  {{{"role", "system"}, {"content", "Be kind."}},
                                   {{"role", "user"}, {"content", "Who are you?"}}}},
                                 {"temperature", 0},
                                 {"max_tokens", 25}},
                                "/v1/chat/completions");
  const Json request = {{"instructions", "Be kind."},
                        {"input", "Who are you?"},
                        {"temperature", 0},
                        {"max_output_tokens", 25}};
  const Json body = response_to(app, request);
  const std::string text = chat["choices"][0]["message"]["content"];
  ASSERT_GT(text.size(), 5U);
  EXPECT_EQ(text_of(body), text);
  EXPECT_EQ(body["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(body["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
  const bool is_cut = chat["choices"][0]["finish_reason"] == "length";
  EXPECT_EQ(body["status"], is_cut ? "incomplete" : "completed");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("resp_"));
  const ResponseClient client = streamed(app, request);
  EXPECT_EQ(comparable(client.final_response()), comparable(body));
  EXPECT_EQ(client.types()[1], "response.in_progress");
  ASSERT_FALSE(client.shares().empty());
  EXPECT_EQ(client.shares()[0]["total"], body["usage"]["input_tokens"]);
}

// A limit beyond the room is none; a prompt beyond it is refused in OpenAI's words.
TEST(AppResponses, FillsTheRoom) {
  App app;
  app.serve();
  Json request = {{"input", std::string(440, 'x')},
                  {"seed", 1},
                  {"ignore_eos", true},
                  {"max_output_tokens", 1'000'000}};
  const Json body = response_to(app, request);
  EXPECT_EQ(body["usage"]["total_tokens"], 512);
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  request["input"] = std::string(600, 'x');
  for (const bool is_stream : {false, true}) {
    request["stream"] = is_stream;
    const std::string answer = post(app, kResponses, request);
    EXPECT_EQ(status_of(answer), 400) << answer;
    const Json error = body_of(answer)["error"];
    EXPECT_TRUE(error["message"].get<std::string>().starts_with(
        "This model's maximum context length is 512 tokens"))
        << error;
    EXPECT_EQ(error["context_length"]["limit"], 512);
  }
}

TEST(AppResponses, RefusesWhatItCannotDo) {
  App app;
  app.serve();
  const std::pair<const char*, Json> cases[] = {{"previous_response_id", "resp_1"},
                                                {"background", true},
                                                {"tool_choice", "required"},
                                                {"input", Json::array()}};
  for (const auto& [name, value] : cases) {
    Json request = {{"input", "a"}};
    request[name] = value;
    const std::string answer = post(app, kResponses, request);
    EXPECT_EQ(status_of(answer), 400) << answer;
    EXPECT_EQ(body_of(answer)["error"]["param"], name);
  }
  EXPECT_EQ(status_of(post(app, kResponses, {{"input", "a"}, {"model", "other"}})), 404);
  EXPECT_EQ(app.service->snapshot().num_accepted, 0);
}

// Agents send tools that only OpenAI's servers have; the log names them.
TEST(AppResponses, LogsTheToolsThatItSkips) {
  std::mutex mutex;
  std::vector<std::string> skipped;
  testing::AppOptions options;
  options.log = [&](const metrics::RequestLogEntry& entry) {
    const std::lock_guard lock(mutex);
    skipped.emplace_back(entry.skipped_tools);
  };
  App app(options);
  app.serve();
  const Json tools = {{{"type", "web_search"}}, {{"type", "custom"}, {"name", "x"}}};
  response_to(app, {{"input", "a"}, {"tools", tools}, {"max_output_tokens", 1}});
  response_to(app, {{"input", "a"}, {"max_output_tokens", 1}});
  app.server.reset();
  std::ranges::sort(skipped);
  EXPECT_EQ(skipped, (std::vector<std::string>{"", "web_search,custom"}));
}

// The prompt of a conversation with tools is the chat's, to the last token.
TEST(AppResponses, ToolsAndThoughtsReachTheTemplate) {
  testing::AppOptions options;
  options.engine.chat_template =
      testing::source_dir() / "tests/golden/tokenizer/templates/qwen3.jinja";
  App app(options);
  app.serve();
  const Json parameters = {{"type", "object"}};
  const Json input = Json::parse(R"([
      {"role":"user","content":"a"},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
      {"type":"function_call","call_id":"c","name":"close","namespace":"n","arguments":"{}"},
      {"type":"function_call_output","call_id":"c","output":"ok"}])");
  const Json messages = Json::parse(R"([
      {"role":"user","content":"a"},
      {"role":"assistant","content":"","reasoning_content":"t","tool_calls":[
        {"id":"c","type":"function","function":{"name":"n__close","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"c","content":"ok"}])");
  const Json inner = {{"type", "function"}, {"name", "close"}};
  const Json spaces = Json::array({{{"type", "namespace"}, {"name", "n"}, {"tools", {inner}}}});
  const Json functions =
      Json::array({{{"type", "function"}, {"function", {{"name", "n__close"}}}}});
  const std::string response =
      post(app, kResponses,
           {{"input", input}, {"tools", spaces}, {"max_output_tokens", 4}, {"temperature", 0}});
  const std::string chat =
      post(app, "/v1/chat/completions",
           {{"messages", messages}, {"tools", functions}, {"max_tokens", 4}, {"temperature", 0}});
  // The prompt may be longer than the tiny model allows; the error then has its length.
  const auto num_prompt_tokens = [](const std::string& answer, const char* name) {
    const Json body = body_of(answer);
    return body.contains("error") ? body["error"]["context_length"]["prompt_tokens"]
                                  : body["usage"][name];
  };
  EXPECT_GT(num_prompt_tokens(response, "input_tokens"), 100);
  EXPECT_EQ(num_prompt_tokens(response, "input_tokens"), num_prompt_tokens(chat, "prompt_tokens"));
}

// A drain has no name in this API: an answer that it cuts has failed, and a client may try again.
TEST(AppResponses, ADrainFailsThem) {
  App app;
  app.serve();
  app.brake.pause_ms = 5;
  Json request = {{"input", "x"}, {"ignore_eos", true}, {"seed", 1}};
  const auto start = [&](bool is_stream) {
    request["stream"] = is_stream;
    auto client = std::make_unique<RawClient>(app.server->port());
    client->send(testing::post_text(kResponses, request.dump()));
    return client;
  };
  const auto streaming = start(true);
  const auto waiting = start(false);
  streaming->read_until("response.output_text.delta");
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().num_running == 2; }));
  std::thread drain([&] { app.server->drain(milliseconds(100)); });
  const std::string rest = streaming->read_all();
  EXPECT_TRUE(has(rest, "event: response.failed")) << rest;
  EXPECT_TRUE(has(rest, "the server is shutting down")) << rest;
  const std::string body = waiting->read_all();
  EXPECT_EQ(status_of(body), 503) << body;
  EXPECT_TRUE(has(body, "\r\nRetry-After: ")) << body;
  streaming->close_now();
  waiting->close_now();
  drain.join();
  EXPECT_TRUE(app.is_free());
}

// Its items are closed as after the limit of tokens, which the client checks.
TEST(AppResponses, AnAnswerThatTakesTooLongIsIncomplete) {
  App app(testing::cut_after(milliseconds(200)));
  app.serve();
  app.brake.pause_ms = 5;
  const Json request = {{"input", "x"}, {"ignore_eos", true}, {"seed", 1}};
  const ResponseClient client = streamed(app, request);
  EXPECT_EQ(client.types().back(), "response.incomplete");
  EXPECT_TRUE(std::ranges::count(client.types(), "response.output_item.done"));
  for (const Json& response : {client.final_response(), response_to(app, request)}) {
    EXPECT_EQ(response["status"], "incomplete") << response;
    EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(response["output"].back()["status"], "incomplete");
    EXPECT_LT(response["usage"]["output_tokens"], 400);
  }
  app.expect_soon("sluice:requests_aborted_total{reason=timeout}", 2);
}

}  // namespace
}  // namespace sluice::server
