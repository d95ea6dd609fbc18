// Streams: chunks written out by hand, and the two metamorphic rules: what a client puts together
// is the body, however outputs are cut; and a slow client, whose events merge, gets the same.
#include "server/api/answer/answer_stream.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/answer_rig.h"
#include "server/api/answer/answer_body.h"
#include "server/http/outbox.h"

namespace sluice {
namespace {

using testing::answer_tokenizer;
using testing::at_ms;
using testing::chat_options;
using testing::Client;
using testing::cut;
using testing::Json;
using testing::kEnd;
using testing::kEndThink;
using testing::kHi;
using testing::kThink;
using testing::OptionsPtr;
using testing::outputs_of;
using testing::rendered;
using testing::sse_data;
using testing::text_options;
OptionsPtr shared(api::AnswerOptions options) {
  return std::make_shared<const api::AnswerOptions>(std::move(options));
}

api::AnswerStream stream_of(const OptionsPtr& options) {
  return {options, testing::openai_writer(options)};
}

RequestOutput output_of(std::string text, std::vector<int32_t> ids,
                        FinishReason reason = FinishReason::kNone) {
  RequestOutput output;
  output.text = std::move(text);
  output.token_ids = std::move(ids);
  output.finish_reason = reason;
  return output;
}

constexpr const char* kHead =
    R"({"id":"chatcmpl-r1","object":"chat.completion.chunk","created":1700000000,"model":"m",)"
    R"("system_fingerprint":"fp",)";

std::string chunk(const std::string& delta, const std::string& rest) {
  return kHead + (R"("choices":[{"index":0,"delta":)" + delta) + rest;
}

// With include_usage all chunks but the last say that there is none.
constexpr const char* kRunning = R"(,"logprobs":null,"finish_reason":null}],"usage":null})";

TEST(AnswerStream, Chat) {
  api::AnswerOptions options = chat_options();
  options.format = {.thinks = true, .tools = ToolFormat::kHermes};
  options.tools = {"f"};
  options.include_usage = true;
  api::AnswerStream stream = stream_of(shared(options));
  using Texts = std::vector<std::string>;
  const auto data = [](const api::AnswerStream::Event& event) { return sse_data(rendered(event)); };
  EXPECT_EQ(data(stream.start()),
            (Texts{chunk(R"({"role":"assistant","content":"","refusal":null})", kRunning)}));
  EXPECT_EQ(data(stream.delta(0, output_of("<think>a", {1, 2}), at_ms(10))),
            (Texts{chunk(R"({"reasoning_content":"a","reasoning":"a"})", kRunning)}));
  // Held back: it may be a tag.
  EXPECT_EQ(data(stream.delta(0, output_of("</think>\n\n", {1}), at_ms(11))), Texts{});
  // And it may still be no call.
  EXPECT_EQ(data(stream.delta(0, output_of("x<tool_call>{\"name\":\"f\"", {1, 2}), at_ms(12))),
            (Texts{chunk(R"({"content":"x"})", kRunning)}));
  EXPECT_EQ(
      data(stream.delta(0, output_of("}</tool_call>", {1}, FinishReason::kStop), at_ms(20))),
      (Texts{chunk(R"({"tool_calls":[{"index":0,"id":")" + api::call_id(7, 0, 0) +
                       R"(","type":"function","function":{"name":"f","arguments":""}}]})",
                   kRunning),
             chunk(R"({"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]})", kRunning),
             chunk("{}", R"(,"logprobs":null,"finish_reason":"tool_calls","stop_reason":null}],)"
                         R"("usage":null})")}));
  EXPECT_EQ(
      data(stream.end({})),
      (Texts{kHead + std::string(R"("choices":[],"usage":{"prompt_tokens":3,"completion_tokens":6,)"
                                 R"("total_tokens":9,"prompt_tokens_details":{"cached_tokens":0},)"
                                 R"("completion_tokens_details":{"reasoning_tokens":0}},)"
                                 R"("timings":{"cache_n":0,"prompt_n":3,"prompt_ms":10.0,)"
                                 R"("prompt_per_token_ms":3.3333333333333335,)"
                                 R"("prompt_per_second":300.0,"predicted_n":6,"predicted_ms":10.0,)"
                                 R"("predicted_per_token_ms":2.0,"predicted_per_second":500.0}})"),
             "[DONE]"}));
}

TEST(AnswerStream, Completions) {
  api::AnswerOptions options = text_options({{.ids = {'a'}, .text = "a"}, {.ids = {'b', 'c'}}});
  options.echo = true;
  options.return_token_ids = true;
  options.include_usage = true;
  options.continuous_usage = true;
  api::AnswerStream stream = stream_of(shared(options));
  std::string text = rendered(stream.start());
  text += rendered(stream.delta(1, output_of("", {0xC3}), at_ms(1)));
  text += rendered(stream.delta(1, output_of("\u00e9", {0xA9}), at_ms(1)));
  text += rendered(stream.delta(0, output_of("", {kEnd}, FinishReason::kStop), at_ms(1)));
  text += rendered(stream.delta(1, output_of("", {}, FinishReason::kCancelled), at_ms(1)));
  text += rendered(stream.end({}));
  std::vector<std::string> shown;
  for (const std::string& data : sse_data(text)) {
    if (data == "[DONE]") continue;
    const Json json = Json::parse(data);
    if (json["choices"].empty()) continue;  // the usage
    const Json& choice = json["choices"][0];
    shown.push_back(choice["index"].dump() + choice["text"].dump() +
                    choice.value("prompt_token_ids", Json()).dump() +
                    choice.value("token_ids", Json()).dump() + choice["finish_reason"].dump() +
                    json["usage"]["completion_tokens"].dump());
  }
  EXPECT_EQ(shown, (std::vector<std::string>{R"(0""[97][]null0)", R"(1""[98,99][]null0)",
                                             R"(1"bc"null[195]null1)", "1\"\u00e9\"null[169]null2",
                                             R"(0"a"null[260]null3)", R"(0""null[]"stop"3)",
                                             R"(1""null[]"abort"3)"}));
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n"));
}

// So far, in each chunk that the answer makes; the first token's time is the prompt's.
TEST(AnswerStream, TimingsPerToken) {
  api::AnswerOptions options = chat_options();
  options.timings_per_token = true;
  api::AnswerStream stream = stream_of(shared(options));
  EXPECT_FALSE(Json::parse(sse_data(rendered(stream.start())).at(0)).contains("timings"));
  const auto timings = [&](int64_t ms, FinishReason reason = FinishReason::kNone) {
    const auto event = stream.delta(0, output_of("a", {'a'}, reason), at_ms(ms));
    const Json all = Json::parse(sse_data(rendered(event)).at(0))["timings"];
    return Json{all["prompt_ms"], all["predicted_n"], all["predicted_ms"],
                all["predicted_per_token_ms"], all["predicted_per_second"]}
        .dump();
  };
  EXPECT_EQ(timings(10), "[10.0,1,0.0,0.0,0.0]");
  EXPECT_EQ(timings(14), "[10.0,2,4.0,4.0,250.0]");
  EXPECT_EQ(timings(20, FinishReason::kLength), "[10.0,3,10.0,5.0,200.0]");
  EXPECT_EQ(sse_data(rendered(stream.end({}))), std::vector<std::string>{"[DONE]"});
}

// Thoughts make no chunk, whatever name they would have; their tokens count.
TEST(AnswerStream, ThoughtsMayBeLeftOut) {
  for (const char* field : {"both", "none"}) {
    api::AnswerOptions options = chat_options();
    options.format.thinks = true;
    options.reasoning_field = api::find_reasoning_field(field).value();
    options.include_thoughts = false;
    options.include_usage = true;
    api::AnswerStream stream = stream_of(shared(options));
    Client client;
    client.read(rendered(stream.start()));
    const auto thought = stream.delta(0, output_of("<think>ab", {kThink, 'a', 'b'}), at_ms(1));
    EXPECT_EQ(rendered(thought), "") << field;
    client.read(rendered(stream.delta(
        0, output_of("</think>Hi", {kEndThink, kHi}, FinishReason::kLength), at_ms(2))));
    client.read(rendered(stream.end({})));
    const Json all = client.document();
    EXPECT_EQ(all["choices"][0]["message"].dump(),
              R"({"content":"Hi","refusal":null,"role":"assistant"})")
        << field;
    EXPECT_EQ(all["usage"]["completion_tokens_details"]["reasoning_tokens"], 4) << field;
  }
}

TEST(AnswerStream, ErrorsEndIt) {
  EXPECT_EQ(
      rendered(
          stream_of(shared(chat_options())).fail({.status = 500, .message = "the device failed"})),
      "data: {\"error\":{\"message\":\"the device failed\",\"type\":\"InternalServerError\","
      "\"param\":null,\"code\":null}}\n\ndata: [DONE]\n\n");
}

// When the engine begins with what the cache has, then at most four a second, never backwards, and
// always at the end.
TEST(AnswerStream, PromptProgress) {
  api::AnswerOptions options = chat_options();
  options.queued = at_ms(1000);
  options.n = 2;
  options.prompts[0].ids.assign(100, 'a');
  {
    api::AnswerStream stream = stream_of(shared(options));
    EXPECT_EQ(stream.progress(0, {.num_prompt_tokens = 100, .num_done = 100}, at_ms(5000)), nullptr)
        << "no return_progress";
  }
  options.return_progress = true;
  api::AnswerStream stream = stream_of(shared(options));
  Client client;
  client.read(rendered(stream.start()));
  EXPECT_TRUE(client.shares().empty()) << "what the cache has is not known yet";
  const auto progress = [&](size_t choice, int64_t done, int64_t ms) {
    const auto event = stream.progress(
        choice, {.num_prompt_tokens = 100, .num_cached_tokens = 5, .num_done = done}, at_ms(ms));
    if (event == nullptr) return false;
    const std::string text = rendered(event);
    EXPECT_NE(text.find(R"("choices":[{"index":0,"delta":{"role":"assistant","content":null},)"
                        R"("logprobs":null,"finish_reason":null}])"),
              text.npos);
    client.read(text);
    return true;
  };
  EXPECT_TRUE(progress(0, 5, 1010));
  EXPECT_FALSE(progress(0, 10, 1259));
  EXPECT_TRUE(progress(0, 10, 1260));
  EXPECT_FALSE(progress(0, 20, 1509));
  EXPECT_FALSE(progress(1, 5, 1600));
  EXPECT_TRUE(progress(0, 30, 1600));
  EXPECT_TRUE(progress(0, 100, 1601));
  EXPECT_FALSE(progress(1, 100, 3000));
  EXPECT_EQ(Json(client.shares()).dump(),
            R"([{"cache":5,"processed":5,"time_ms":10,"total":100},)"
            R"({"cache":5,"processed":10,"time_ms":260,"total":100},)"
            R"({"cache":5,"processed":30,"time_ms":600,"total":100},)"
            R"({"cache":5,"processed":100,"time_ms":601,"total":100}])");
}

struct Case {
  const char* name;
  api::AnswerOptions options;
  std::vector<std::string> answers;  // by choice
};

const char* const kCallText =
    "<think>\nhm \u4e16\u754c\n\n</think>\n\nHi, \u00e9\n<tool_call>\n"
    "{\"name\": \"f\", \"arguments\": {\"city\": \"Z\u00fcrich\", \"n\": [1, 2]}}\n</tool_call>\n"
    "<tool_call>{\"name\": \"f\"}</tool_call>Hi<tool_call>{\"name\": \"g\"} \U0001F600";

std::vector<Case> cases() {
  api::AnswerOptions chat = chat_options();
  chat.format = {.thinks = true, .tools = ToolFormat::kHermes};
  chat.tools = {"f"};
  chat.logprobs = 2;
  chat.prompt_logprobs = 1;
  chat.return_token_ids = true;
  chat.include_usage = true;
  std::vector<Case> all;
  all.push_back({"chat", chat, {kCallText}});
  chat.n = 3;
  chat.continuous_usage = true;
  all.push_back({"choices", chat, {kCallText, "Hi", "<think>only \U0001F600"}});
  chat.n = 1;
  chat.single_call = true;
  all.push_back({"one call", chat, {kCallText}});
  chat.single_call = false;
  chat.format = {.thinks = true, .starts_in_thought = true, .tools = ToolFormat::kLlama3Json};
  all.push_back({"llama", chat, {"hm</think>{\"name\":\"f\",\"parameters\":{\"a\":\"\u00e9\"}} "}});
  api::AnswerOptions text =
      text_options({{.ids = {testing::kBos, 'a', 'b'}, .text = "ab"}, {.ids = {'a', 0xC3, 'b'}}});
  text.n = 2;
  text.include_usage = true;
  all.push_back({"texts", text, {"<think>Hi\n", kCallText, "\n", "Hi"}});
  text.logprobs = 2;
  text.return_token_ids = true;
  text.prompt_logprobs = 1;
  all.push_back({"logprobs", text, {"<think>Hi\n", kCallText, "\n", "Hi"}});
  text.echo = true;
  all.push_back({"echo", text, {"<think>Hi\n", kCallText, "\n", "Hi"}});
  return all;
}

// One output on its way, in an order that keeps each choice's.
struct Arrival {
  size_t choice;
  RequestOutput output;
  http::TimePoint time;
};

std::vector<Arrival> arrivals(const std::vector<std::vector<RequestOutput>>& outputs,
                              std::mt19937& random) {
  std::vector<std::vector<RequestOutput>> parts;
  std::vector<size_t> order;
  for (const auto& choice : outputs) {
    parts.push_back(cut(choice, random));
    order.insert(order.end(), parts.back().size(), parts.size() - 1);
  }
  std::shuffle(order.begin(), order.end(), random);
  std::vector<size_t> next(parts.size());
  std::vector<Arrival> all;
  for (const size_t choice : order) {
    const auto time = at_ms(10 + static_cast<int64_t>(all.size()));
    all.push_back({choice, std::move(parts[choice][next[choice]++]), time});
  }
  return all;
}

std::string slow_stream(api::AnswerStream& stream, std::vector<Arrival> parts, std::mt19937& random,
                        size_t& num_events) {
  http::Outbox outbox(size_t{1} << 30, [] {});
  outbox.begin_stream({});
  outbox.send(stream.start());
  std::string text;
  const unsigned pace = 1 + random() % 8;
  const auto take = [&] {
    for (const auto& event : outbox.take(1 + random() % 10000).events) {
      event->render(text);
      ++num_events;
    }
  };
  for (Arrival& part : parts) {
    outbox.send(stream.delta(part.choice, std::move(part.output), part.time));
    if (random() % pace == 0) take();
  }
  outbox.send(stream.end(api::CachedPlaces{.host = 2}));
  outbox.finish();
  while (outbox.queued_bytes() > 0) take();
  return text;
}

// What a client puts together, as text; `usage` as the body has it.
std::string put_together(const std::string& text) {
  Client client;
  client.read(text);
  EXPECT_TRUE(client.done());
  return client.document().dump();
}

// A body with the names of a stream.
std::string expected(OptionsPtr options, const std::vector<Arrival>& parts) {
  api::AnswerBody body(options, testing::openai_writer(options));
  for (const Arrival& part : parts) body.add(part.choice, part.output, part.time);
  Json json = Json::parse(body.text(api::CachedPlaces{.host = 2}));
  if (options->route == api::AnswerRoute::kChat) json["object"] = "chat.completion.chunk";
  return json.dump();
}

// Every cut, every pace of the client and every order of arrival that the seeds give.
TEST(AnswerStream, GivesTheBodyHoweverItIsCutAndMerged) {
  std::mt19937 random(20261123);
  for (const Case& one : cases()) {
    const OptionsPtr options = shared(one.options);
    std::vector<std::vector<RequestOutput>> outputs;
    for (const std::string& answer : one.answers) {
      const bool whole = outputs.size() % 3 == 0;
      outputs.push_back(
          outputs_of(answer, random, whole ? FinishReason::kStop : FinishReason::kLength));
    }
    size_t num_parts = 0, num_events = 0;
    for (int round = 0; round < 16; ++round) {
      const std::vector<Arrival> parts = arrivals(outputs, random);
      const std::string want = expected(options, parts);
      api::AnswerStream fast = stream_of(options);
      std::string text = rendered(fast.start());
      for (const Arrival& part : parts) {
        text += rendered(fast.delta(part.choice, part.output, part.time));
      }
      text += rendered(fast.end(api::CachedPlaces{.host = 2}));
      ASSERT_EQ(put_together(text), want) << one.name << " in round " << round;
      api::AnswerStream slow = stream_of(options);
      ASSERT_EQ(put_together(slow_stream(slow, parts, random, num_events)), want)
          << one.name << ", merged, in round " << round;
      num_parts += parts.size();
    }
    EXPECT_LT(num_events, num_parts) << one.name << ": hardly anything merged";
  }
}

// By hand: what the text of the cases above says.
TEST(AnswerStream, ReadsThoughtsAndCalls) {
  std::mt19937 random(3);
  const OptionsPtr options = shared(cases().front().options);
  const std::vector<Arrival> parts = arrivals({outputs_of(kCallText, random)}, random);
  const Json choice = Json::parse(expected(options, parts))["choices"][0];
  const Json& message = choice["message"];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(message["reasoning"], "hm \u4e16\u754c");
  EXPECT_EQ(message["content"], "Hi, \u00e9\n\nHi<tool_call>{\"name\": \"g\"} \U0001F600");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"],
            "{\"city\": \"Z\u00fcrich\", \"n\": [1, 2]}");
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_EQ(choice["logprobs"]["content"].size(), answer_tokenizer().encode(kCallText).size() + 1);
}

// A merged event counts its bytes, keeps the first and the latest share, and does not take what is
// not its own.
TEST(AnswerStream, EventsMerge) {
  api::AnswerOptions options = chat_options();
  options.return_progress = true;
  api::AnswerStream stream = stream_of(shared(options));
  rendered(stream.start());
  const auto first = stream.progress(0, {.num_prompt_tokens = 5, .num_done = 1}, at_ms(300));
  const auto between = stream.progress(0, {.num_prompt_tokens = 5, .num_done = 3}, at_ms(9000));
  const auto second = stream.progress(0, {.num_prompt_tokens = 5, .num_done = 5}, at_ms(9001));
  const auto third = stream.delta(0, output_of("Hi", {kHi}), at_ms(302));
  const auto fourth = stream.delta(0, output_of(std::string(1000, 'x'), {'x'}), at_ms(303));
  EXPECT_TRUE(first->absorb(*between));
  const size_t bytes = first->size_bytes();
  EXPECT_TRUE(first->absorb(*second));
  EXPECT_EQ(first->size_bytes(), bytes);
  EXPECT_TRUE(first->absorb(*third));
  const size_t more = first->size_bytes();
  EXPECT_GE(more, bytes + 2);
  EXPECT_TRUE(first->absorb(*fourth));
  EXPECT_GE(first->size_bytes(), more + 1000);
  const auto end = stream.end({});
  EXPECT_FALSE(first->absorb(*end));
  EXPECT_FALSE(end->absorb(*first));
  api::AnswerStream other = stream_of(shared(options));
  const auto foreign = other.delta(0, output_of("no", {1}), at_ms(304));
  EXPECT_FALSE(first->absorb(*foreign));
  const std::vector<std::string> data = sse_data(rendered(first));
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(Json::parse(data[0])["prompt_progress"]["processed"], 1);
  EXPECT_EQ(Json::parse(data[1])["prompt_progress"]["processed"], 5);
  EXPECT_EQ(Json::parse(data[2])["choices"][0]["delta"]["content"], "Hi" + std::string(1000, 'x'));
}

}  // namespace
}  // namespace sluice
