// Bodies written out by hand.
#include "server/api/answer/answer_body.h"

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/answer_rig.h"
#include "server/api/answer/answer_choice.h"

namespace sluice {
namespace {

using testing::answer_tokenizer;
using testing::at_ms;
using testing::chat_options;
using testing::entry;
using testing::kBos;
using testing::kEnd;
using testing::kEndThink;
using testing::kHi;
using testing::kThink;
using testing::text_options;

RequestOutput finished_output(std::string text, std::vector<int32_t> ids,
                              FinishReason reason = FinishReason::kStop) {
  RequestOutput output;
  output.num_cached_tokens = 2;
  output.text = std::move(text);
  output.token_ids = std::move(ids);
  output.finish_reason = reason;
  return output;
}

// The first choice answers at once, each further one 50 ms later.
std::string body_of(const api::AnswerOptions& options, std::vector<RequestOutput> outputs,
                    std::optional<api::CachedPlaces> places = {}) {
  const auto shared = std::make_shared<const api::AnswerOptions>(options);
  api::AnswerBody body(shared, testing::openai_writer(shared));
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_FALSE(body.complete());
    body.add(i, std::move(outputs[i]), at_ms(100 + 50 * static_cast<int64_t>(i)));
  }
  EXPECT_TRUE(body.complete());
  return body.text(places);
}

TEST(AnswerBody, Chat) {
  api::AnswerOptions options = chat_options();
  options.format.thinks = true;
  const RequestOutput output = finished_output(
      "<think>\nhm\n</think>\n\nHi \u00e9",
      {kThink, '\n', 'h', 'm', '\n', kEndThink, '\n', '\n', kHi, ' ', 0xC3, 0xA9, kEnd});
  EXPECT_EQ(body_of(options, {output}, api::CachedPlaces{.device = 1, .disk = 1}),
            R"({"id":"chatcmpl-r1","object":"chat.completion","created":1700000000,"model":"m",)"
            R"("system_fingerprint":"fp",)"
            R"("choices":[{"index":0,"message":{"role":"assistant","content":"Hi )"
            "\u00e9"
            R"(","refusal":null,"reasoning_content":"hm","reasoning":"hm"},"logprobs":null,)"
            R"("finish_reason":"stop","stop_reason":null}],)"
            R"("usage":{"prompt_tokens":3,"completion_tokens":13,"total_tokens":16,)"
            R"("prompt_tokens_details":{"cached_tokens":2},)"
            R"("completion_tokens_details":{"reasoning_tokens":6}},)"
            R"("timings":{"cache_n":2,"prompt_n":1,"prompt_ms":100.0,"prompt_per_token_ms":100.0,)"
            R"("prompt_per_second":10.0,"predicted_n":13,"predicted_ms":0.0,)"
            R"("predicted_per_token_ms":0.0,"predicted_per_second":0.0,)"
            R"("cache":{"device":1,"host":0,"disk":1}}})");
}

TEST(AnswerBody, Completions) {
  api::AnswerOptions options = text_options({{.ids = {1}}, {.ids = {2, 3}}});
  options.n = 2;
  options.return_token_ids = true;
  options.stop_token_ids = {'!'};
  RequestOutput stopped = finished_output("ab", {'a', 'b', 'c'});
  stopped.stop_reason = "c";
  const auto choice = [](int index, const std::string& rest) {
    return R"({"index":)" + std::to_string(index) + "," + rest + "}";
  };
  // Choices 0 and 1 are of prompt 0; a prompt's cached tokens are those of the choice with fewer.
  RequestOutput other = finished_output("<think>", {kThink, '!'});
  other.num_cached_tokens = 1;
  EXPECT_EQ(
      body_of(options, {stopped, other, finished_output("x", {'x'}, FinishReason::kLength),
                        finished_output("", {}, FinishReason::kCancelled)}),
      R"({"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"m",)"
      R"("system_fingerprint":"fp","choices":[)" +
          choice(0, R"("text":"ab","logprobs":null,"finish_reason":"stop","stop_reason":"c",)"
                    R"("token_ids":[97,98,99],"prompt_token_ids":[1])") +
          "," +
          choice(1, R"("text":"<think>","logprobs":null,"finish_reason":"stop","stop_reason":33,)"
                    R"("token_ids":[257,33],"prompt_token_ids":[1])") +
          "," +
          choice(2, R"("text":"x","logprobs":null,"finish_reason":"length","stop_reason":null,)"
                    R"("token_ids":[120],"prompt_token_ids":[2,3])") +
          "," +
          choice(3, R"("text":"","logprobs":null,"finish_reason":"abort","stop_reason":null,)"
                    R"("token_ids":[],"prompt_token_ids":[2,3])") +
          R"(],"usage":{"prompt_tokens":3,"completion_tokens":6,"total_tokens":9,)"
          R"("prompt_tokens_details":{"cached_tokens":3},)"
          R"("completion_tokens_details":{"reasoning_tokens":0}},)"
          R"("timings":{"cache_n":3,"prompt_n":0,"prompt_ms":250.0,"prompt_per_token_ms":0.0,)"
          R"("prompt_per_second":0.0,"predicted_n":6,"predicted_ms":150.0,)"
          R"("predicted_per_token_ms":50.0,"predicted_per_second":20.0}})");
}

// Only where the request's limit did not count.
TEST(AnswerBody, UsageSaysThatTheLimitWasClamped) {
  api::AnswerOptions options = chat_options();
  const auto usage = [&] {
    return testing::Json::parse(body_of(options, {finished_output("Hi", {kHi, kEnd})}))["usage"];
  };
  EXPECT_FALSE(usage().contains("clamped_max_tokens"));
  options.clamped_max_tokens = 7;
  EXPECT_EQ(usage()["clamped_max_tokens"], 7);
}

testing::Json choice_of(const api::AnswerOptions& options, const RequestOutput& output) {
  return testing::Json::parse(body_of(options, {output}))["choices"][0];
}

TEST(AnswerBody, ReasoningFields) {
  api::AnswerOptions options = chat_options();
  options.format = {.thinks = true, .starts_in_thought = true};
  const RequestOutput output = finished_output("a</think>b", {'a', kEndThink, 'b', kEnd});
  using api::ReasoningField;
  const std::pair<const char*, const char*> cases[] = {
      {"both", R"({"content":"b","reasoning":"a","reasoning_content":"a",)"
               R"("refusal":null,"role":"assistant"})"},
      {"reasoning_content",
       R"({"content":"b","reasoning_content":"a","refusal":null,"role":"assistant"})"},
      {"reasoning", R"({"content":"b","reasoning":"a","refusal":null,"role":"assistant"})"},
      {"none", R"({"content":"a</think>b","refusal":null,"role":"assistant"})"}};
  for (const auto& [name, message] : cases) {
    options.reasoning_field = api::find_reasoning_field(name).value();
    EXPECT_EQ(choice_of(options, output)["message"].dump(), message) << name;
  }
  EXPECT_FALSE(api::find_reasoning_field("Both"));
}

// Under no name, and not in the content; their tokens and what is asked for of each are there.
TEST(AnswerBody, ThoughtsMayBeLeftOut) {
  api::AnswerOptions options = chat_options();
  options.format = {.thinks = true, .starts_in_thought = true};
  options.include_thoughts = false;
  options.return_token_ids = true;
  const RequestOutput output = finished_output("a</think>b", {'a', kEndThink, 'b', kEnd});
  for (const char* name : {"both", "reasoning_content", "reasoning", "none"}) {
    options.reasoning_field = api::find_reasoning_field(name).value();
    const testing::Json body = testing::Json::parse(body_of(options, {output}));
    const testing::Json& choice = body["choices"][0];
    EXPECT_EQ(choice["message"].dump(), R"({"content":"b","refusal":null,"role":"assistant"})")
        << name;
    EXPECT_EQ(choice["token_ids"].size(), 4u) << name;
    EXPECT_EQ(body["usage"]["completion_tokens"], 4) << name;
    EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 2) << name;
  }
}

// In both shapes, of the token and of the likeliest; the text stays.
TEST(AnswerBody, TokensMayBeNamedByTheirIds) {
  RequestOutput output = finished_output("Hi", {kHi});
  output.logprobs = {testing::entry(kHi, -0.5f, {{kHi, -0.5f}, {'x', -1.0f}})};
  for (api::AnswerOptions options : {chat_options(), text_options({{.ids = {1}}})}) {
    options.logprobs = 2;
    options.token_names = api::TokenNames::kIds;
    const testing::Json choice = choice_of(options, output);
    const testing::Json& logprobs = choice["logprobs"];
    if (options.route == api::AnswerRoute::kChat) {
      const testing::Json& token = logprobs["content"][0];
      EXPECT_EQ(choice["message"]["content"], "Hi");
      EXPECT_EQ(token["token"], "token_id:256");
      EXPECT_EQ(token["bytes"].dump(), "[72,105]");
      EXPECT_EQ(token["top_logprobs"][1]["token"], "token_id:120");
    } else {
      EXPECT_EQ(choice["text"], "Hi");
      EXPECT_EQ(logprobs["tokens"].dump(), R"(["token_id:256"])");
      EXPECT_EQ(logprobs["top_logprobs"].dump(), R"([{"token_id:120":-1.0,"token_id:256":-0.5}])");
    }
  }
}

TEST(AnswerBody, ToolCalls) {
  api::AnswerOptions options = chat_options();
  options.format.tools = ToolFormat::kHermes;
  options.tools = {"f"};
  const std::string f = R"(<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>)";
  const std::string empty = R"(<tool_call>{"name":"f"}</tool_call>)";
  const testing::Json both = choice_of(options, finished_output(f + "\n" + empty, {1}));
  EXPECT_EQ(both["finish_reason"], "tool_calls");
  EXPECT_TRUE(both["message"]["content"].is_null());
  const testing::Json& calls = both["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["function"].dump(), R"({"arguments":"{\"a\":1}","name":"f"})");
  EXPECT_EQ(calls[1]["function"].dump(), R"({"arguments":"{}","name":"f"})");
  EXPECT_EQ(calls[0]["index"], 0);
  EXPECT_EQ(calls[1]["index"], 1);
  EXPECT_EQ(calls[1]["type"], "function");
  EXPECT_EQ(calls[0]["id"], api::call_id(7, 0, 0));
  EXPECT_EQ(calls[1]["id"], api::call_id(7, 0, 1));

  // Text beside calls is content, and so is a call that is not whole.
  EXPECT_EQ(choice_of(options, finished_output("x" + f, {1}))["message"]["content"], "x");
  const testing::Json broken = choice_of(
      options,
      finished_output(R"(<tool_call>{"name":"f","arguments":{"a)", {1}, FinishReason::kLength));
  EXPECT_EQ(broken["finish_reason"], "length");
  EXPECT_FALSE(broken["message"].contains("tool_calls"));
  EXPECT_EQ(broken["message"]["content"], R"(<tool_call>{"name":"f","arguments":{"a)");
  const testing::Json unknown =
      choice_of(options, finished_output(R"(<tool_call>{"name":"g"})", {1}));
  EXPECT_EQ(unknown["finish_reason"], "stop");
  EXPECT_EQ(unknown["message"].dump(),
            R"({"content":"<tool_call>{\"name\":\"g\"}","refusal":null,"role":"assistant"})");
}

// What comes after the only call counts for nothing, the reason of the end included.
TEST(AnswerBody, KeepsToOneCall) {
  api::AnswerOptions options = chat_options();
  options.format.tools = ToolFormat::kHermes;
  options.tools = {"f"};
  options.single_call = true;
  const std::string call = R"(<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>)";
  for (const std::string& after : {call + "y", std::string("y"), call.substr(0, 30)}) {
    for (const FinishReason reason :
         {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled}) {
      const testing::Json choice =
          choice_of(options, finished_output("x" + call + after, {1}, reason));
      EXPECT_EQ(choice["finish_reason"], "tool_calls") << after;
      EXPECT_EQ(choice["message"]["content"], "x") << after;
      EXPECT_EQ(choice["message"]["tool_calls"].size(), 1U) << after;
    }
  }
}

// Clients run the calls of an answer that says tool_calls and take it for whole.
TEST(AnswerBody, WhatCutsAnAnswerCountsMoreThanItsCalls) {
  api::AnswerOptions options = chat_options();
  options.format.tools = ToolFormat::kHermes;
  options.tools = {"f"};
  options.stop_token_ids = {1};
  const std::string f = R"(<tool_call>{"name":"f"}</tool_call>)";
  for (const std::string rest : {"", "\n<tool_call>", R"(<tool_call>{"name":"f","arg)", "Hi"}) {
    const auto reason = [&](FinishReason finish, const char* stop_text) {
      RequestOutput output = finished_output(f + rest, {1}, finish);
      output.stop_reason = stop_text;
      const testing::Json choice = choice_of(options, output);
      EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
      return choice["finish_reason"];
    };
    EXPECT_EQ(reason(FinishReason::kStop, ""), "tool_calls") << rest;  // a stop id as well
    EXPECT_EQ(reason(FinishReason::kStop, "x"), "stop") << rest;
    EXPECT_EQ(reason(FinishReason::kLength, ""), "length") << rest;
    EXPECT_EQ(reason(FinishReason::kCancelled, ""), "abort") << rest;
  }
}

TEST(AnswerBody, CallIds) {
  std::map<std::string, int> seen;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    for (size_t choice = 0; choice < 16; ++choice) {
      for (size_t call = 0; call < 16; ++call) {
        const std::string id = api::call_id(seed, choice, call);
        EXPECT_EQ(id.size(), 29u);
        EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 5), id.npos);
        ++seen[id];
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * 16 * 16);
}

TEST(AnswerBody, StopTextIfAskedFor) {
  api::AnswerOptions options = text_options({{.ids = {1}}});
  RequestOutput output = finished_output("ab", {'a', 'b', 'c'});
  output.stop_reason = "cd";
  EXPECT_EQ(choice_of(options, output)["text"], "ab");
  options.include_stop_text = true;
  EXPECT_EQ(choice_of(options, output)["text"], "abcd");
}

// max_tokens 0: the token that the engine made is nowhere.
TEST(AnswerBody, PromptOnly) {
  api::AnswerOptions options = text_options({{.ids = {'a', 'b'}}});
  options.echo = true;
  options.prompt_only = true;
  options.logprobs = 0;
  options.return_token_ids = true;
  RequestOutput output = finished_output("x", {'x'});
  output.logprobs = {entry('x', -1.0f)};
  output.prompt_logprobs = {{}, entry('b', -0.5f)};
  const testing::Json body = testing::Json::parse(body_of(options, {output}));
  EXPECT_EQ(body["choices"][0]["text"], "ab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][0]["token_ids"], testing::Json::array());
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"], testing::Json({"a", "b"}));
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
}

// By hand, whatever the cuts: tags count, what follows them does not.
TEST(ThoughtCounter, CountsTokens) {
  const auto count = [](AnswerFormat format, const std::vector<int32_t>& ids) {
    api::ThoughtCounter counter(format, answer_tokenizer(), true);
    for (const int32_t id : ids) counter.push(id);
    return counter.num_tokens();
  };
  const AnswerFormat thinks{.thinks = true}, inside{.thinks = true, .starts_in_thought = true};
  EXPECT_EQ(count({}, {kThink, 'a', kEndThink}), 0);
  EXPECT_EQ(count(thinks, {'\n', kThink, 'a', kEndThink, 'b', kEnd}), 4);
  EXPECT_EQ(count(thinks, {'x', kThink, 'a', kEndThink}), 0);
  EXPECT_EQ(count(thinks, {kThink, 'a'}), 2);
  EXPECT_EQ(count(thinks, {'<', 't'}), 0);
  EXPECT_EQ(count(inside, {'a', '<', '<', '/', 't', 'h', 'i', 'n', 'k', '>', 'b'}), 10);
  EXPECT_EQ(count(inside, {'a', 'b'}), 2);
  EXPECT_EQ(count(inside, {kBos, kEndThink, 'b'}), 2);
}

}  // namespace
}  // namespace sluice
