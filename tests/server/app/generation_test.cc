// Answers over HTTP against LLM::generate with the same options, and streams against bodies.
#include <algorithm>
#include <limits>
#include <mutex>

#include <gtest/gtest.h>

#include "server/app/rig.h"
#include "sluice/llm.h"

namespace sluice::server {
namespace {

using http::has;
using http::status_of;
using testing::App;
using testing::body_of;
using testing::joined;
using testing::Json;
using testing::kCompletions;
using testing::post;
using testing::stream;

const char* const kChats = "/v1/chat/completions";

class AppGeneration : public ::testing::Test {
 protected:
  void SetUp() override { app_.serve(); }

  // What the library answers, one after the other.
  RequestOutput expected(const Prompt& prompt, const SamplingParams& params) {
    return llm_.generate({prompt}, params).at(0);
  }
  static Json posted(const App& app, const char* path, const Json& request) {
    const std::string answer = post(app, path, request);
    EXPECT_EQ(status_of(answer), 200) << answer;
    return body_of(answer);
  }
  // Expects a body and a stream with these texts and ends; returns the body.
  Json expect_answers(const char* path, Json request, const std::vector<RequestOutput>& outputs) {
    const Json body = posted(app_, path, request);
    request["stream_options"] = {{"include_usage", true}};
    const testing::Streamed streamed = joined(stream(app_, path, request), outputs.size());
    EXPECT_EQ(body["choices"].size(), outputs.size()) << body;
    size_t num_generated = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Json& choice = body["choices"].at(i);
      const Json& text = path == kChats ? choice["message"]["content"] : choice["text"];
      EXPECT_EQ(choice["index"], i);
      EXPECT_EQ(text, outputs[i].text);
      EXPECT_EQ(streamed.texts[i], outputs[i].text);
      EXPECT_EQ(choice["finish_reason"], finish_reason_name(outputs[i].finish_reason));
      EXPECT_EQ(streamed.reasons[i], finish_reason_name(outputs[i].finish_reason));
      num_generated += outputs[i].token_ids.size();
    }
    EXPECT_EQ(body["usage"]["completion_tokens"], num_generated);
    for (const char* name : {"prompt_tokens", "completion_tokens", "total_tokens"}) {
      EXPECT_EQ(body["usage"][name], streamed.usage[name]) << name;
    }
    return body;
  }

  App app_;
  LLM llm_{testing::app_engine()};
};

const char* const kText = "The quick brown fox";

TEST_F(AppGeneration, CompletesAsTheLibrary) {
  const RequestOutput greedy = expected(kText, {.temperature = 0, .max_tokens = 40});
  ASSERT_GT(greedy.text.size(), 10U);
  const Json body = expect_answers(
      kCompletions, {{"prompt", kText}, {"temperature", 0}, {"max_tokens", 40}}, {greedy});
  EXPECT_EQ(body["usage"]["prompt_tokens"], 19);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
}

// An end by an id, and one by a text: the answer's own.
TEST_F(AppGeneration, StopsAsTheLibrary) {
  const RequestOutput whole = expected(kText, {.temperature = 0, .max_tokens = 40});
  const int32_t id = whole.token_ids.at(7);
  SamplingParams by_id{.temperature = 0, .max_tokens = 40, .stop_token_ids = {id}};
  const RequestOutput stopped = expected(kText, by_id);
  ASSERT_EQ(stopped.finish_reason, FinishReason::kStop);
  expect_answers(
      kCompletions,
      {{"prompt", kText}, {"temperature", 0}, {"max_tokens", 40}, {"stop_token_ids", {id}}},
      {stopped});
  const size_t ascii =
      whole.text.find_first_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", 4);
  ASSERT_NE(ascii, std::string::npos);
  const std::string stop(1, whole.text[ascii]);
  const RequestOutput cut = expected(kText, {.temperature = 0, .max_tokens = 40, .stop = {stop}});
  const Json body = expect_answers(
      kCompletions, {{"prompt", kText}, {"temperature", 0}, {"max_tokens", 40}, {"stop", stop}},
      {cut});
  EXPECT_EQ(body["choices"][0]["stop_reason"], stop);
}

// Choice i is the library's answer to the same prompt with the seed plus i.
TEST_F(AppGeneration, ChoicesHaveSeedsOneAfterTheOther) {
  std::vector<RequestOutput> outputs;
  for (int seed = 7; seed < 10; ++seed) {
    outputs.push_back(expected(kText, {.seed = seed, .max_tokens = 30}));
  }
  ASSERT_NE(outputs[0].text, outputs[1].text);
  expect_answers(kCompletions, {{"prompt", kText}, {"seed", 7}, {"n", 3}, {"max_tokens", 30}},
                 outputs);
}

// A negative seed is one of its own.
TEST_F(AppGeneration, TakesNegativeSeeds) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  std::vector<RequestOutput> outputs;
  for (const int64_t seed : {int64_t{-1}, int64_t{0}}) {
    outputs.push_back(expected(kText, {.seed = seed, .max_tokens = 30}));
  }
  EXPECT_NE(outputs[0].text, outputs[1].text);
  EXPECT_NE(outputs[0].text, expected(kText, {.seed = ~kLeast, .max_tokens = 30}).text)
      << "without its sign it is this one";
  expect_answers(kCompletions, {{"prompt", kText}, {"seed", -1}, {"n", 2}, {"max_tokens", 30}},
                 outputs);
  expect_answers(kCompletions, {{"prompt", kText}, {"seed", kLeast}, {"max_tokens", 30}},
                 {expected(kText, {.seed = kLeast, .max_tokens = 30})});
}

// Each prompt begins again with the seed of the request.
TEST_F(AppGeneration, BatchesAreAnsweredByPromptThenChoice) {
  std::vector<RequestOutput> outputs;
  for (const char* prompt : {"abc", "a longer one"}) {
    for (int seed = 1; seed < 3; ++seed) {
      outputs.push_back(expected(prompt, {.seed = seed, .max_tokens = 12}));
    }
  }
  expect_answers(kCompletions,
                 {{"prompt", {"abc", "a longer one"}}, {"seed", 1}, {"n", 2}, {"max_tokens", 12}},
                 outputs);
}

TEST_F(AppGeneration, TakesTokenIds) {
  const std::vector<int32_t> ids = testing::random_tokens(100, 3);
  const RequestOutput output = expected(ids, {.temperature = 0, .max_tokens = 10});
  Json request = {
      {"prompt", ids}, {"temperature", 0}, {"max_tokens", 10}, {"return_token_ids", true}};
  const Json body = expect_answers(kCompletions, request, {output});
  EXPECT_EQ(body["choices"][0]["token_ids"], Json(output.token_ids));
}

TEST_F(AppGeneration, ChatsAsTheLibrary) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "Who are you?"}};
  const RequestOutput output =
      expected(llm_.chat_prompt(messages), {.temperature = 0, .max_tokens = 25});
  const Json body = expect_answers(kChats,
                                   {{"messages", {{{"role", "user"}, {"content", "Who are you?"}}}},
                                    {"temperature", 0},
                                    {"max_tokens", 25}},
                                   {output});
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
}

// With echo and no token to generate, the text is the prompt alone.
TEST_F(AppGeneration, EchoesThePrompt) {
  const Json body =
      posted(app_, kCompletions, {{"prompt", kText}, {"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(body["choices"][0]["text"], kText);
}

// Without max_tokens a chat has the room that the prompt leaves, and no more.
TEST_F(AppGeneration, ChatsFillTheRoom) {
  const Json body = posted(app_, kChats,
                           {{"messages", {{{"role", "user"}, {"content", std::string(440, 'x')}}}},
                            {"seed", 1},
                            {"ignore_eos", true}});
  EXPECT_EQ(body["usage"]["total_tokens"], 512);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST_F(AppGeneration, SharesOfThePromptComeInOrder) {
  const auto events =
      stream(app_, kCompletions,
             {{"prompt", std::string(300, 'p')}, {"max_tokens", 2}, {"return_progress", true}});
  int64_t last = -1;
  for (const std::string& event : events) {
    if (!has(event, "prompt_progress")) continue;
    const Json share = Json::parse(event)["prompt_progress"];
    EXPECT_EQ(share["total"], 300);
    EXPECT_GT(share["processed"], last);
    last = share["processed"].get<int64_t>();
  }
  EXPECT_EQ(last, 300);
}

// As in llama-server: the first share is that of the cache.
TEST_F(AppGeneration, TheFirstShareSaysWhatTheCacheHas) {
  const Json request = {
      {"prompt", std::string(300, 'q')}, {"max_tokens", 1}, {"return_progress", true}};
  for (const bool is_cached : {false, true}) {
    const auto events = stream(app_, kCompletions, request);
    const auto first = std::ranges::find_if(
        events, [](const std::string& event) { return has(event, "prompt_progress"); });
    ASSERT_NE(first, events.end());
    EXPECT_EQ(Json::parse(*first)["prompt_progress"]["cache"] > 0, is_cached);
  }
}

TEST_F(AppGeneration, PrefixesAreFoundByRequestsWithTheSameSalt) {
  std::vector<int64_t> num_cached;
  for (const char* salt : {"a", "b", "a"}) {
    const Json request = {
        {"prompt", std::string(300, 's')}, {"max_tokens", 1}, {"cache_salt", salt}};
    const Json body = body_of(post(app_, kCompletions, request));
    num_cached.push_back(body["usage"]["prompt_tokens_details"]["cached_tokens"]);
  }
  EXPECT_EQ(num_cached[0], 0);
  EXPECT_EQ(num_cached[1], 0);
  EXPECT_GT(num_cached[2], 0);
}

// Streams and bodies alike get a status and the member that is wrong.
TEST_F(AppGeneration, RefusesBeforeAnythingIsQueued) {
  struct Case {
    Json request;
    int status;
    const char* param;
  };
  for (const Case& one : {Case{{{"prompt", "a"}, {"n", 0}}, 400, "n"},
                          Case{{{"prompt", "a"}, {"model", "other"}}, 404, "model"},
                          Case{{{"prompt", {1, 2, 160}}}, 400, "prompt"},
                          Case{{{"prompt", "a"}, {"temperature", -1}}, 400, "temperature"}}) {
    for (const bool is_stream : {false, true}) {
      Json request = one.request;
      request["stream"] = is_stream;
      const std::string answer = post(app_, kCompletions, request);
      EXPECT_EQ(status_of(answer), one.status) << answer;
      EXPECT_TRUE(has(body_of(answer)["error"]["param"].dump(), one.param)) << answer;
    }
  }
  const std::string full = post(app_, kCompletions, {{"prompt", std::string(512, 'x')}});
  EXPECT_EQ(status_of(full), 400);
  EXPECT_EQ(body_of(full)["error"]["context_length"],
            (Json{{"limit", 512}, {"prompt_tokens", 512}, {"max_tokens", 1}}));
  // A byte that the model has no row for.
  EXPECT_EQ(status_of(post(app_, kCompletions, {{"prompt", "\xc3\xbf"}})), 400);
  EXPECT_EQ(app_.service->snapshot().num_accepted, 0);
}

// More than the room counts as the room on every route, and the usage says so.
TEST_F(AppGeneration, ClampsMaxTokensToTheRoom) {
  const std::string text(400, 'x');
  const Json messages = {{{"role", "user"}, {"content", text}}};
  struct Case {
    const char* path;
    const char* limit;
    Json request;
  };
  for (const Case& one : {Case{kCompletions, "max_tokens", {{"prompt", text}}},
                          {kChats, "max_tokens", {{"messages", messages}}},
                          {kChats, "max_completion_tokens", {{"messages", messages}}},
                          {"/v1/messages", "max_tokens", {{"messages", messages}}},
                          {"/v1/responses", "max_output_tokens", {{"input", text}}}}) {
    Json request = one.request;
    request[one.limit] = 2'000'000;
    request["ignore_eos"] = true;
    const Json usage = posted(app_, one.path, request)["usage"];
    const bool is_chat = usage.contains("prompt_tokens");
    const int64_t prompt = usage[is_chat ? "prompt_tokens" : "input_tokens"].get<int64_t>() +
                           usage.value("cache_read_input_tokens", int64_t{0});
    EXPECT_EQ(usage["clamped_max_tokens"], 512 - prompt) << one.path << usage;
    EXPECT_EQ(usage[is_chat ? "completion_tokens" : "output_tokens"], 512 - prompt) << usage;
    request[one.limit] = 5;
    EXPECT_FALSE(posted(app_, one.path, request)["usage"].contains("clamped_max_tokens"));
  }
}

// Answers that may have one call are accepted whatever the form of calls is.
TEST(AppChat, KeepsToOneCall) {
  testing::AppOptions options;
  options.engine.chat_template =
      testing::source_dir() / "tests/golden/tokenizer/templates/qwen2.5.jinja";
  App app(options);
  app.serve();
  Json request = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
                  {"parallel_tool_calls", false},
                  {"max_tokens", 1}};
  request["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  // The template's words about tools may be longer than the tiny model allows.
  const auto is_accepted = [&](const char* path) {
    const std::string answer = post(app, path, request);
    return status_of(answer) == 200 || has(answer, "context_length_exceeded") ||
           has(answer, "prompt is too long");
  };
  EXPECT_TRUE(is_accepted(kChats));
  request["tools"] = {{{"name", "f"}, {"input_schema", Json::object()}}};
  request.erase("parallel_tool_calls");
  request["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  EXPECT_TRUE(is_accepted("/v1/messages"));
}

// The same count that the request itself would have.
TEST_F(AppGeneration, CountsTheTokensOfAPrompt) {
  const Json messages = {{{"role", "user"}, {"content", "How long?"}}};
  const Json chat = posted(app_, "/v1/chat/completions/input_tokens", {{"messages", messages}});
  EXPECT_EQ(chat["object"], "response.input_tokens");
  EXPECT_EQ(chat["input_tokens"],
            posted(app_, kChats, {{"messages", messages}})["usage"]["prompt_tokens"]);
  EXPECT_EQ(posted(app_, "/v1/responses/input_tokens", {{"input", "How long?"}}), chat);
  EXPECT_EQ(status_of(post(app_, "/v1/responses/input_tokens", Json::object())), 400);
  EXPECT_EQ(status_of(post(app_, "/v1/chat/completions/input_tokens",
                           {{"messages", messages}, {"model", "other"}})),
            404);
}

// llama-server has all paths without /v1, too; both are one route in counts.
TEST_F(AppGeneration, TakesPathsWithoutTheVersion) {
  const Json request = {{"prompt", kText}, {"temperature", 0}, {"max_tokens", 3}};
  EXPECT_EQ(posted(app_, "/completions", request)["choices"],
            posted(app_, kCompletions, request)["choices"]);
  EXPECT_EQ(status_of(app_.get("/models")), 200);
  EXPECT_EQ(status_of(app_.get("/models/tiny")), 200);
  EXPECT_EQ(status_of(app_.get("/v1/models/")), 404);
  app_.expect_soon("sluice:http_requests_total{route=/v1/completions,code=200}", 2);
}

TEST(AppChat, FormatsOfCallsHaveNames) {
  EXPECT_EQ(find_tool_format("none"), ToolFormat::kNone);
  EXPECT_EQ(find_tool_format("hermes"), ToolFormat::kHermes);
  EXPECT_EQ(find_tool_format("llama3_json"), ToolFormat::kLlama3Json);
  EXPECT_EQ(find_tool_format("qwen3_coder"), ToolFormat::kQwen3Coder);
  EXPECT_EQ(find_tool_format("auto"), std::nullopt);
}

// Texts are in the log only if it was asked for them.
TEST(AppLog, HasTextsOnlyOnRequest) {
  for (const bool log_text : {false, true}) {
    std::mutex mutex;
    std::vector<metrics::RequestLogEntry> lines;
    testing::AppOptions options;
    options.log = [&](const metrics::RequestLogEntry& entry) {
      const std::lock_guard lock(mutex);
      lines.push_back(entry);
    };
    options.log_text = log_text;
    App app(options);
    app.serve();
    Json request = {{"prompt", "my secret"}, {"n", 2}, {"max_tokens", 5}, {"seed", 3}};
    const Json body = body_of(post(app, kCompletions, request));
    request["stream"] = true;
    stream(app, kCompletions, request);
    app.server.reset();
    ASSERT_EQ(lines.size(), 2U);
    for (const metrics::RequestLogEntry& line : lines) {
      ASSERT_EQ(line.text.has_value(), log_text);
      const std::string text = request_log_text(line), json = request_log_json(line);
      EXPECT_EQ(has(text, "secret"), log_text) << text;
      EXPECT_EQ(has(json, "secret"), log_text) << json;
      if (!log_text) continue;
      EXPECT_EQ(Json::parse(line.text->request)["prompt"], "my secret");
      ASSERT_EQ(line.text->answers.size(), 2U);
      EXPECT_EQ(line.text->answers[1], body["choices"][1]["text"].get<std::string>());
      EXPECT_EQ(Json::parse(json)["answers"][1], body["choices"][1]["text"]);
      EXPECT_EQ(text.find_first_of("\n\r"), std::string::npos);
    }
  }
}

// One line for a request, with the sums of its choices.
TEST(AppLog, HasALineForEachRequest) {
  std::mutex mutex;
  std::vector<metrics::RequestLogEntry> lines;
  testing::AppOptions options;
  options.log = [&](const metrics::RequestLogEntry& entry) {
    const std::lock_guard lock(mutex);
    lines.push_back(entry);
  };
  App app(options);
  app.serve();
  const Json request = {{"prompt", "abc"}, {"n", 2}, {"max_tokens", 5}, {"ignore_eos", true}};
  for (const char* id : {"first", "second"}) {
    http::RawClient client(app.server->port());
    client.send(testing::post_text(kCompletions, request.dump(),
                                   std::string("X-Request-Id: ") + id + "\r\n"));
    EXPECT_TRUE(has(client.read_answer(), std::string("\"cmpl-") + id));
  }
  post(app, kCompletions, {{"prompt", 1.5}});
  Json odd = {{"prompt", "abc"}, {"max_tokens", 1}, {"bogus", 1}, {"odd", {{"a", 1}}}};
  post(app, kCompletions, odd);
  post(app, "/v1/v1/completions?key=secret", {{"prompt", "abc"}});
  app.server.reset();
  ASSERT_EQ(lines.size(), 5U);
  const auto take = [&](auto is_it) {
    const auto found = std::ranges::find_if(lines, is_it);
    if (found == lines.end()) return std::string("no line");
    const std::string text = request_log_text(*found);
    lines.erase(found);
    return text;
  };
  EXPECT_TRUE(has(take([](const auto& line) { return !line.ignored_fields.empty(); }),
                  " ignored_fields=bogus,odd"));
  const std::string lost = take([](const auto& line) { return line.status == 404; });
  EXPECT_TRUE(has(lost, " unknown 404 method=POST path=/v1/v1/completions ")) << lost;
  EXPECT_FALSE(has(lost, "secret")) << lost;
  std::vector<std::string> ids;  // read after the server that made them is gone
  for (const metrics::RequestLogEntry& line : lines) ids.push_back(line.id);
  std::ranges::sort(ids);
  EXPECT_TRUE(std::ranges::includes(ids, std::vector<std::string>{"first", "second"}));
  std::ranges::sort(lines, {}, &metrics::RequestLogEntry::status);
  EXPECT_EQ(lines[0].route, kCompletions);
  ASSERT_TRUE(lines[0].summary);
  EXPECT_EQ(lines[0].summary->num_prompt_tokens, 6);
  EXPECT_EQ(lines[0].summary->num_generated_tokens, 10);
  EXPECT_EQ(lines[0].summary->outcome, metrics::Outcome::kLength);
  EXPECT_FALSE(lines[0].aborted);
  EXPECT_EQ(lines[2].status, 400);
  EXPECT_FALSE(lines[2].summary);
}

}  // namespace
}  // namespace sluice::server
