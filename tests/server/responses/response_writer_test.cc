// Responses: events written out by hand, and the metamorphic rules: what a client puts together is
// the body, however outputs are cut; and a slow client, whose events merge, gets the same.
#include "server/api/responses/response_writer.h"

#include <map>
#include <memory>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "server/answer_rig.h"
#include "server/api/answer/answer_body.h"
#include "server/api/answer/answer_choice.h"
#include "server/api/answer/answer_stream.h"
#include "server/responses/response_client.h"

namespace sluice {
namespace {

using testing::answer_tokenizer;
using testing::at_ms;
using testing::cut;
using testing::outputs_of;
using testing::ResponseClient;
using Json = nlohmann::ordered_json;
using OptionsPtr = std::shared_ptr<const api::AnswerOptions>;

// An answer of a model that thinks and may call f, and close of the namespace agents.
OptionsPtr options_of(AnswerFormat format = {.thinks = true, .tools = ToolFormat::kHermes},
                      bool single_call = false) {
  api::AnswerOptions options = testing::chat_options();
  options.single_call = single_call;
  options.format = format;
  options.tools = {"f", "agents__close"};
  options.return_progress = true;
  return std::make_shared<const api::AnswerOptions>(std::move(options));
}

api::ResponseFacts facts_of() {
  api::ResponseFacts facts;
  facts.instructions = "Be kind.";
  facts.metadata = {{"a", "b"}};
  facts.max_output_tokens = 100;
  facts.temperature = 0.7f;
  facts.in_spaces["agents__close"] = {.space = "agents", .name = "close"};
  return facts;
}

std::shared_ptr<api::ResponseWriter> writer_of(const OptionsPtr& options,
                                               api::ResponseFacts facts = facts_of()) {
  return std::make_shared<api::ResponseWriter>(options, std::move(facts), answer_tokenizer());
}

std::string rendered(const api::AnswerStream::Event& event) {
  std::string text;
  event->render(text);
  return text;
}

Json body_of(const OptionsPtr& options, const std::vector<RequestOutput>& outputs,
             const api::ResponseFacts& facts = facts_of()) {
  api::AnswerBody body(options, writer_of(options, facts));
  for (const RequestOutput& output : outputs) body.add(0, output, at_ms(10));
  return Json::parse(body.text({}));
}

RequestOutput output_of(std::string text, std::vector<int32_t> ids,
                        FinishReason reason = FinishReason::kNone) {
  RequestOutput output;
  output.text = std::move(text);
  output.token_ids = std::move(ids);
  output.finish_reason = reason;
  return output;
}

// What the texts of the events say, without the responses in them.
std::vector<std::string> texts_of(const std::string& stream) {
  std::vector<std::string> texts;
  for (size_t at = stream.find("data: "); at != stream.npos; at = stream.find("data: ", at)) {
    const size_t end = stream.find("\n\n", at);
    texts.push_back(stream.substr(at + 6, end - at - 6));
    at = end;
  }
  return texts;
}

TEST(ResponseWriter, EventsByHand) {
  const OptionsPtr options = options_of();
  api::AnswerStream stream(options, writer_of(options));
  const std::string message = "msg_" + api::call_digits(7, 1, 0);
  rendered(stream.start());
  const std::string part = R"("item_id":")" + message + R"(","output_index":0,"content_index":0,)";
  const std::string done_part =
      R"({"type":"output_text","text":"Hi","annotations":[],"logprobs":[]})";
  EXPECT_EQ(
      texts_of(rendered(stream.delta(0, output_of("Hi", {1}), at_ms(1)))),
      (std::vector<std::string>{
          R"({"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":)"
          R"({"id":")" +
              message +
              R"(","type":"message","status":"in_progress","role":"assistant","content":[]}})",
          R"({"type":"response.content_part.added","sequence_number":3,)" + part +
              R"("part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}})",
          R"({"type":"response.output_text.delta","sequence_number":4,)" + part +
              R"("delta":"Hi","logprobs":[]})"}));
  const std::string call = "fc_" + api::call_digits(7, 1, 1);
  EXPECT_EQ(
      texts_of(rendered(stream.delta(0, output_of("<tool_call>{\"name\":\"f\"}", {1}), at_ms(2)))),
      (std::vector<std::string>{
          R"({"type":"response.output_text.done","sequence_number":5,)" + part +
              R"("text":"Hi","logprobs":[]})",
          R"({"type":"response.content_part.done","sequence_number":6,)" + part + R"("part":)" +
              done_part + "}",
          R"({"type":"response.output_item.done","sequence_number":7,"output_index":0,"item":)"
          R"({"id":")" +
              message +
              R"(","type":"message","status":"completed","role":"assistant","content":[)" +
              done_part + "]}}",
          R"({"type":"response.output_item.added","sequence_number":8,"output_index":1,"item":)"
          R"({"id":")" +
              call + R"(","type":"function_call","status":"in_progress","call_id":")" +
              api::call_id(7, 0, 1) + R"(","name":"f","arguments":""}})",
          R"({"type":"response.function_call_arguments.delta","sequence_number":9,"item_id":")" +
              call + R"(","output_index":1,"delta":"{}"})",
          R"({"type":"response.function_call_arguments.done","sequence_number":10,"item_id":")" +
              call + R"(","output_index":1,"arguments":"{}"})",
          R"({"type":"response.output_item.done","sequence_number":11,"output_index":1,"item":)"
          R"({"id":")" +
              call + R"(","type":"function_call","status":"completed","call_id":")" +
              api::call_id(7, 0, 1) + R"(","name":"f","arguments":"{}"}})"}));
}

TEST(ResponseWriter, ResponseByHand) {
  const Json body = body_of(
      options_of(),
      {output_of("<think>a</think>", {testing::kThink, 'a', testing::kEndThink}),
       output_of("Hi", {testing::kHi}), output_of("", {testing::kEnd}, FinishReason::kStop)});
  const std::string digits[] = {api::call_digits(7, 1, 0), api::call_digits(7, 1, 1)};
  const Json want = {{"id", "resp_r1"},
                     {"object", "response"},
                     {"created_at", 1700000000},
                     {"status", "completed"},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"instructions", "Be kind."},
                     {"max_output_tokens", 100},
                     {"max_tool_calls", nullptr},
                     {"model", "m"},
                     {"output",
                      {{{"id", "rs_" + digits[0]},
                        {"type", "reasoning"},
                        {"status", "completed"},
                        {"summary", Json::array()},
                        {"content", {{{"type", "reasoning_text"}, {"text", "a"}}}}},
                       {{"id", "msg_" + digits[1]},
                        {"type", "message"},
                        {"status", "completed"},
                        {"role", "assistant"},
                        {"content",
                         {{{"type", "output_text"},
                           {"text", "Hi"},
                           {"annotations", Json::array()},
                           {"logprobs", Json::array()}}}}}}},
                     {"parallel_tool_calls", true},
                     {"previous_response_id", nullptr},
                     {"prompt_cache_key", nullptr},
                     {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                     {"safety_identifier", nullptr},
                     {"service_tier", "default"},
                     {"store", false},
                     {"temperature", 0.7},
                     {"text", {{"format", {{"type", "text"}}}}},
                     {"tool_choice", "auto"},
                     {"tools", Json::array()},
                     {"top_logprobs", 0},
                     {"top_p", 1.0},
                     {"truncation", "disabled"},
                     {"usage",
                      {{"input_tokens", 3},
                       {"input_tokens_details", {{"cached_tokens", 0}, {"cache_write_tokens", 0}}},
                       {"output_tokens", 5},
                       {"output_tokens_details", {{"reasoning_tokens", 3}}},
                       {"total_tokens", 8}}},
                     {"user", nullptr},
                     {"metadata", {{"a", "b"}}}};
  EXPECT_EQ(body.dump(1), want.dump(1));
}

// Pings tell of the prompt; once the answer has begun, of all of it.
TEST(ResponseWriter, PingsTellOfThePrompt) {
  api::AnswerOptions with_prompt = *options_of();
  with_prompt.prompts[0].ids.assign(100, 'a');
  const auto options = std::make_shared<const api::AnswerOptions>(with_prompt);
  api::AnswerStream stream(options, writer_of(options));
  const auto ping = stream.head().ping;
  ResponseClient client;
  const auto read_ping = [&] {
    std::string text;
    ping(text);
    client.read(text);
  };
  client.read(rendered(stream.start()));
  const auto share = stream.progress(
      0, {.num_prompt_tokens = 100, .num_cached_tokens = 32, .num_done = 64}, at_ms(500));
  ASSERT_NE(share, nullptr);
  EXPECT_EQ(rendered(share), "") << "only pings have it";
  read_ping();
  RequestOutput first = output_of("Hi", {testing::kHi});
  first.num_cached_tokens = 48;
  client.read(rendered(stream.delta(0, first, at_ms(900))));
  read_ping();
  using Values = std::vector<int64_t>;
  std::vector<Values> seen;
  for (const Json& one : client.shares()) {
    seen.push_back({one["total"], one["cache"], one["processed"], one["time_ms"]});
  }
  EXPECT_EQ(seen, (std::vector<Values>{{100, 0, 0, 0}, {100, 32, 64, 500}, {100, 48, 100, 500}}));
}

TEST(ResponseWriter, FailsWithWhatThereIs) {
  const OptionsPtr options = options_of();
  api::AnswerStream stream(options, writer_of(options));
  ResponseClient client;
  client.read(rendered(stream.start()));
  client.read(rendered(stream.delta(0, output_of("Hi", {testing::kHi}), at_ms(1))));
  // As an answer that is cut by a drain: the output that ends it says nothing.
  client.read(rendered(stream.delta(0, output_of(" y", {1}, FinishReason::kCancelled), at_ms(2))));
  client.read(rendered(stream.fail({.status = 500, .message = "the device failed"})));
  EXPECT_EQ(client.types().back(), "response.failed");
  const Json& response = client.final_response();
  EXPECT_EQ(response["error"], (Json{{"code", "server_error"}, {"message", "the device failed"}}));
  EXPECT_EQ(response["output"].size(), 1U);
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hi y");
  const auto fault = writer_of(options)->abort_fault();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->status, 503);
}

// As an answer that is cut by the limit of time: nothing fails, and its end closes the item.
TEST(ResponseWriter, ACancelledAnswerIsIncomplete) {
  const OptionsPtr options = options_of();
  const RequestOutput last = output_of(" y", {1}, FinishReason::kCancelled);
  api::AnswerStream stream(options, writer_of(options));
  ResponseClient client;
  client.read(rendered(stream.start()));
  client.read(rendered(stream.delta(0, output_of("Hi", {testing::kHi}), at_ms(1))));
  client.read(rendered(stream.delta(0, last, at_ms(2))));
  client.read(rendered(stream.end({})));
  EXPECT_EQ(client.types().back(), "response.incomplete");
  const Json& response = client.final_response();
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hi y");
  const Json body = body_of(options, {output_of("Hi", {testing::kHi}), last});
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["output"], response["output"]);
}

struct Case {
  const char* name;
  OptionsPtr options;
  std::string answer;
  FinishReason reason = FinishReason::kStop;
};

const char* const kTwoCalls =
    "<think>\nhm \u4e16\u754c\n\n</think>\n\nHi, \u00e9\n<tool_call>\n"
    "{\"name\": \"f\", \"arguments\": {\"city\": \"Z\u00fcrich\", \"n\": [1, 2]}}\n</tool_call>\n"
    "<tool_call>{\"name\": \"agents__close\"}</tool_call>Hi<tool_call>{\"name\": \"g\"} "
    "\U0001F600";
const char* const kBrokenCall = "Hi<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, ]";

std::vector<Case> cases() {
  const AnswerFormat llama = {
      .thinks = true, .starts_in_thought = true, .tools = ToolFormat::kLlama3Json};
  const OptionsPtr single = options_of({.thinks = true, .tools = ToolFormat::kHermes}, true);
  return {
      {"calls", options_of(), kTwoCalls},
      {"one call", single, kTwoCalls},
      {"one call, cut later", single, kTwoCalls, FinishReason::kLength},
      {"cut", options_of(), kTwoCalls, FinishReason::kLength},
      {"broken", options_of(), kBrokenCall},
      {"cut in a call", options_of(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
       FinishReason::kLength},
      {"cut in a thought", options_of(), "<think>only \U0001F600", FinishReason::kLength},
      {"llama", options_of(llama), "hm</think>{\"name\":\"f\",\"parameters\":{\"a\":\"\u00e9\"}} "},
      {"nothing", options_of(), ""},
      {"space", options_of(), "<think> \n</think> \n"},
      {"spaces", options_of(),
       " <think> \n</think>  Hi \t<tool_call>{\"name\": \"f\"}</tool_call> \t<tool_call>"
       "{\"name\": \"f\"}</tool_call> "},
      {"a tag's front", options_of(), "Hi\n<tool", FinishReason::kLength}};
}

// Every cut that the seed gives; a slow client gets events that absorbed others.
TEST(ResponseWriter, GivesTheBodyHoweverItIsCutAndMerged) {
  std::mt19937 random(20261123);
  for (const Case& one : cases()) {
    const std::vector<RequestOutput> outputs = outputs_of(one.answer, random, one.reason);
    const Json want = body_of(one.options, outputs);
    for (int round = 0; round < 32; ++round) {
      const std::vector<RequestOutput> parts = cut(outputs, random);
      ASSERT_EQ(body_of(one.options, parts), want) << one.name;
      api::AnswerStream stream(one.options, writer_of(one.options));
      ResponseClient client;
      client.read(rendered(stream.start()));
      api::AnswerStream::Event waiting;
      for (const RequestOutput& part : parts) {
        api::AnswerStream::Event next = stream.delta(0, part, at_ms(10));
        if (waiting && round % 2 == 1 && random() % 2 == 0) {
          ASSERT_TRUE(waiting->absorb(*next));
          continue;
        }
        if (waiting) client.read(rendered(waiting));
        waiting = std::move(next);
      }
      client.read(rendered(waiting));
      client.read(rendered(stream.end({})));
      ASSERT_EQ(client.final_response(), want) << one.name << " in round " << round;
      ASSERT_FALSE(::testing::Test::HasFailure()) << one.name << " in round " << round;
    }
  }
}

// Only the tokens of a text, each once, however the answer is cut.
TEST(ResponseWriter, TextsHaveLogprobsIfAskedFor) {
  api::AnswerOptions options = *options_of();
  options.logprobs = 1;
  const auto asked = std::make_shared<const api::AnswerOptions>(options);
  std::mt19937 random(7);
  const std::vector<RequestOutput> outputs = outputs_of(kTwoCalls, random);
  const Json want = body_of(asked, outputs);
  size_t num_texts = 0;
  for (const Json& item : want["output"]) {
    if (item["type"] != "message") continue;
    const Json& part = item["content"][0];
    std::string bytes;
    for (const Json& entry : part["logprobs"]) {
      for (const Json& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
      EXPECT_EQ(entry["top_logprobs"].size(), 1U);
    }
    // Line ends next to calls are known to be text only later, when their tokens are of no text.
    std::string text = part["text"];
    text.erase(0, text.find_first_not_of('\n'));
    EXPECT_TRUE(contains(bytes, text));
    EXPECT_EQ(bytes.find("</"), bytes.npos) << bytes << ": a tag of a thought or a call";
    ++num_texts;
  }
  EXPECT_EQ(num_texts, 2U);
  EXPECT_EQ(body_of(options_of(), outputs)["output"][1]["content"][0]["logprobs"], Json::array());
  for (int round = 0; round < 32; ++round) {
    const std::vector<RequestOutput> parts = cut(outputs, random);
    ASSERT_EQ(body_of(asked, parts), want);
    api::AnswerStream stream(asked, writer_of(asked));
    ResponseClient client;
    client.read(rendered(stream.start()));
    for (const RequestOutput& part : parts) {
      client.read(rendered(stream.delta(0, part, at_ms(10))));
    }
    client.read(rendered(stream.end({})));
    ASSERT_EQ(client.final_response(), want) << round;
  }
}

// By hand: the types and ends of the items of each case, and what ends the response.
TEST(ResponseWriter, EndsByHand) {
  const std::map<std::string, std::string> want = {
      {"calls",
       "completed reasoning:completed message:completed function_call:completed "
       "function_call:completed message:completed"},
      {"one call", "completed reasoning:completed message:completed function_call:completed"},
      {"one call, cut later",
       "completed reasoning:completed message:completed function_call:completed"},
      {"cut",
       "incomplete reasoning:completed message:completed function_call:completed "
       "function_call:completed message:incomplete"},
      {"broken", "completed message:completed"},
      {"cut in a call", "incomplete message:incomplete"},
      {"cut in a thought", "incomplete reasoning:incomplete"},
      {"llama", "completed reasoning:completed function_call:completed"},
      {"nothing", "completed message:completed"},
      {"space", "completed message:completed"},
      {"spaces", "completed message:completed function_call:completed function_call:completed"},
      {"a tag's front", "incomplete message:incomplete"}};
  std::mt19937 random(5);
  for (const Case& one : cases()) {
    const Json body = body_of(one.options, outputs_of(one.answer, random, one.reason));
    std::string seen = body["status"];
    for (const Json& item : body["output"]) {
      seen += " " + item["type"].get<std::string>() + ":" + item["status"].get<std::string>();
    }
    EXPECT_EQ(seen, want.at(one.name)) << one.name;
    const Json details = one.reason == FinishReason::kLength && !one.options->single_call
                             ? Json{{"reason", "max_output_tokens"}}
                             : Json();
    EXPECT_EQ(body["incomplete_details"], details) << one.name;
  }
}

// A function of a namespace has its two names again; ids do not come twice.
TEST(ResponseWriter, CallsHaveTheirNames) {
  std::mt19937 random(6);
  const Json body = body_of(options_of(), outputs_of(kTwoCalls, random));
  const Json& output = body["output"];
  ASSERT_EQ(output.size(), 5U);
  EXPECT_EQ(output[2]["name"], "f");
  EXPECT_FALSE(output[2].contains("namespace"));
  EXPECT_EQ(output[2]["arguments"], "{\"city\": \"Z\u00fcrich\", \"n\": [1, 2]}");
  EXPECT_EQ(output[3]["name"], "close");
  EXPECT_EQ(output[3]["namespace"], "agents");
  EXPECT_EQ(output[3]["arguments"], "{}");
  EXPECT_EQ(output[4]["content"][0]["text"], "\n\nHi<tool_call>{\"name\": \"g\"} \U0001F600");
  std::map<std::string, int> ids;
  for (const Json& item : output) ++ids[item["id"]];
  EXPECT_EQ(ids.size(), 5U);
  EXPECT_NE(output[2]["call_id"], output[3]["call_id"]);
}

}  // namespace
}  // namespace sluice
