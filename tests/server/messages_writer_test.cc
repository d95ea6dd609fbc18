// Answers of the messages API: events written out by hand, and the metamorphic rule: what a client
// puts together from a stream is the body, however outputs are cut and merged.
#include "server/api/messages/messages_writer.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/answer_rig.h"
#include "server/api/answer/answer_body.h"
#include "server/api/answer/answer_stream.h"
#include "server/api/messages/messages_fault.h"
#include "server/http/outbox.h"
#include "server/messages_client.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

using testing::answer_tokenizer;
using testing::at_ms;
using testing::chat_options;
using testing::cut;
using testing::Json;
using testing::MessagesClient;
using testing::OptionsPtr;
using testing::outputs_of;
using testing::rendered;
std::shared_ptr<api::MessagesWriter> writer_of(const OptionsPtr& options) {
  return std::make_shared<api::MessagesWriter>(options, answer_tokenizer());
}

OptionsPtr message_options(AnswerFormat format = {.thinks = true, .tools = ToolFormat::kHermes}) {
  api::AnswerOptions options = chat_options();
  options.format = format;
  options.tools = {"f"};
  options.return_progress = true;
  return std::make_shared<const api::AnswerOptions>(std::move(options));
}

std::string body_of(const OptionsPtr& options, const std::vector<RequestOutput>& outputs) {
  api::AnswerBody body(options, writer_of(options));
  for (const RequestOutput& output : outputs) body.add(0, output, at_ms(5));
  return body.text({});
}

// A client that takes events whenever `takes` says so; what it has not taken merges.
std::string streamed(const OptionsPtr& options, const std::vector<RequestOutput>& outputs,
                     const std::function<bool()>& takes) {
  api::AnswerStream stream(options, writer_of(options));
  http::Outbox outbox(size_t{1} << 30, [] {});
  outbox.begin_stream(stream.head());
  outbox.send(stream.start());
  std::string text;
  const auto take = [&] {
    for (const auto& event : outbox.take(1 << 20).events) event->render(text);
  };
  for (const RequestOutput& output : outputs) {
    outbox.send(stream.delta(0, output, at_ms(5)));
    if (takes()) take();
  }
  outbox.send(stream.end({}));
  outbox.finish();
  take();
  return text;
}

Json read_message(const std::string& stream) {
  MessagesClient client;
  client.read(stream);
  EXPECT_TRUE(client.done()) << stream;
  return client.message();
}

struct MessageCase {
  const char* name;
  std::string text;
  const char* stop_reason;
  AnswerFormat format = {.thinks = true, .tools = ToolFormat::kHermes};
  FinishReason finish = FinishReason::kStop;
  std::string stop = {};  // the text that ended it
};

const char* const kUnreadable = R"(<tool_call>{"name": "f", "arguments": {"a": "\d"}}</tool_call>)";

std::vector<MessageCase> message_cases() {
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Z\u00fcrich\","
      " \"n\": [1, {\"a\": null}]}}\n</tool_call>";
  return {
      {"text", "Hi \u4e16\u754c\n", "end_turn"},
      {"nothing", "", "end_turn"},
      {"thought", "<think>\nhm \U0001F600\n</think>\n\nHi", "end_turn"},
      {"only a thought", "<think>hm", "max_tokens", {.thinks = true}, FinishReason::kLength},
      {"in a thought", "hm</think>Hi", "end_turn", {.thinks = true, .starts_in_thought = true}},
      {"calls", "<think>\nhm\n</think>\n\nI look.\n" + call + "\n" + call + "Hi", "tool_use"},
      {"no arguments", "<tool_call>{\"name\": \"f\"}</tool_call>", "tool_use"},
      {"no call", "<tool_call>{\"name\": \"g\"}</tool_call>", "end_turn"},
      {"cut call",
       "I\n" + call.substr(0, 54),
       "max_tokens",
       {.tools = ToolFormat::kHermes},
       FinishReason::kLength},
      {"cut after a call",
       call + call.substr(0, 70),
       "max_tokens",
       {.tools = ToolFormat::kHermes},
       FinishReason::kLength},
      {"long after a call",
       call + "Hi",
       "max_tokens",
       {.tools = ToolFormat::kHermes},
       FinishReason::kLength},
      {"stopped after a call",
       call,
       "stop_sequence",
       {.tools = ToolFormat::kHermes},
       FinishReason::kStop,
       "END"},
      {"unreadable call", kUnreadable, "end_turn"},
      {"llama",
       "{\"name\":\"f\",\"parameters\":{\"a\":\"\u00e9\"}}",
       "tool_use",
       {.tools = ToolFormat::kLlama3Json}},
      {"stop", "Hi ", "stop_sequence", {}, FinishReason::kStop, "END"},
      {"length", "Hi ", "max_tokens", {}, FinishReason::kLength},
  };
}

std::vector<RequestOutput> outputs_of(const MessageCase& one, std::mt19937& random) {
  std::vector<RequestOutput> outputs =
      outputs_of(one.text + (one.text.empty() ? " " : ""), random, one.finish);
  if (one.text.empty()) outputs.erase(outputs.begin());
  outputs.back().stop_reason = one.stop;
  return outputs;
}

// All ways to cut an answer in two, and out of it all parts of up to six tokens; then many ways to
// cut it into more.
TEST(MessagesWriter, GivesTheBodyHoweverItIsCutAndMerged) {
  std::mt19937 random(20261123);
  for (const MessageCase& one : message_cases()) {
    const OptionsPtr options = message_options(one.format);
    const std::vector<RequestOutput> outputs = outputs_of(one, random);
    const Json want = Json::parse(body_of(options, outputs));
    ASSERT_EQ(want["stop_reason"], one.stop_reason) << one.name << want;
    const auto expect = [&](const std::vector<RequestOutput>& parts, const auto& takes) {
      ASSERT_EQ(Json::parse(body_of(options, parts)), want) << one.name;
      ASSERT_EQ(read_message(streamed(options, parts, takes)), want) << one.name;
    };
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (size_t j = i; j < std::min(outputs.size(), i + 7); ++j) {
        std::vector<RequestOutput> parts;
        for (size_t k = 0; k < outputs.size(); ++k) {
          if (k == 0 || k == i || k == j) parts.emplace_back();
          parts.back().append(outputs[k]);
        }
        expect(parts, [] { return true; });
      }
    }
    for (int round = 0; round < 40; ++round) {
      expect(cut(outputs, random), [&] { return random() % 3 == 0; });
    }
  }
}

// By hand: what the texts above say.
TEST(MessagesWriter, Bodies) {
  std::mt19937 random(3);
  const auto content = [&](const char* name) {
    for (const MessageCase& one : message_cases()) {
      if (std::string(one.name) != name) continue;
      const OptionsPtr options = message_options(one.format);
      const std::string body = body_of(options, outputs_of(one, random));
      return nlohmann::ordered_json::parse(body)["content"].dump();
    }
    return std::string("no such case");
  };
  const auto call = [](size_t index, const std::string& input) {
    return R"({"type":"tool_use","id":"toolu_)" + api::call_digits(7, 0, index) +
           R"(","name":"f","input":)" + input + "}";
  };
  const std::string input = "{\"city\":\"Z\u00fcrich\",\"n\":[1,{\"a\":null}]}";
  const std::string thought = R"({"type":"thinking","thinking":"hm","signature":""})";
  EXPECT_EQ(content("nothing"), "[]");
  EXPECT_EQ(content("only a thought"), "[" + thought + "]");
  EXPECT_EQ(content("in a thought"), "[" + thought + R"(,{"type":"text","text":"Hi"}])");
  EXPECT_EQ(content("calls"), "[" + thought + R"(,{"type":"text","text":"I look."},)" +
                                  call(0, input) + "," + call(1, input) +
                                  R"(,{"type":"text","text":"\n\nHi"}])");
  EXPECT_EQ(content("no arguments"), "[" + call(0, "{}") + "]");
  EXPECT_EQ(content("no call"),
            R"([{"type":"text","text":"<tool_call>{\"name\": \"g\"}</tool_call>"}])");
  const auto text = [](const std::string& value) {
    return nlohmann::ordered_json({{"type", "text"}, {"text", value}}).dump();
  };
  const std::string front = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Z\u00fcri";
  EXPECT_EQ(content("cut call"), "[" + text("I\n" + front) + "]");
  EXPECT_EQ(content("cut after a call"),
            "[" + call(0, input) + "," + text(front + "ch\", \"n\": [1, {\"") + "]");
  EXPECT_EQ(content("unreadable call"), "[" + text(kUnreadable) + "]");
}

TEST(MessagesWriter, Body) {
  const OptionsPtr options = message_options();
  RequestOutput output;
  output.num_cached_tokens = 2;
  output.text = "<think>hm</think>Hi";
  output.token_ids = {testing::kThink, 'h', 'm', testing::kEndThink, testing::kHi, testing::kEnd};
  output.finish_reason = FinishReason::kStop;
  EXPECT_EQ(body_of(options, {output}),
            R"({"id":"msg_r1","type":"message","role":"assistant","model":"m","content":[)"
            R"({"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"Hi"}],)"
            R"("stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,)"
            R"("cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":6,)"
            R"("output_tokens_details":{"thinking_tokens":4}}})");
}

// The file is also read by the real client in tools/clients/check_anthropic.py.
TEST(MessagesWriter, Stream) {
  const OptionsPtr options = message_options();
  api::AnswerStream stream(options, writer_of(options));
  std::string text = rendered(stream.start());
  const auto share = stream.progress(
      0, {.num_prompt_tokens = 3, .num_cached_tokens = 2, .num_done = 3}, at_ms(40));
  text += rendered(share);
  const auto delta = [&](std::string part, int num_tokens, bool ends = false) {
    RequestOutput output;
    output.num_cached_tokens = 2;
    output.text = std::move(part);
    output.token_ids.assign(static_cast<size_t>(num_tokens), 'x');
    if (ends) output.finish_reason = FinishReason::kStop;
    text += rendered(stream.delta(0, std::move(output), at_ms(50)));
  };
  delta("<think>\nIt asks for", 4);
  delta(" the time.\n</think>\n\nI look", 8);
  stream.head().ping(text);
  delta(" it up.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Z\u00fc", 9);
  delta("rich\", \"n\": [1, 2]}}\n</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>", 9, true);
  text += rendered(stream.end({}));
  std::ifstream file(testing::source_dir() / "tests/golden/server/messages_stream.txt");
  const std::string want{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, want);
  EXPECT_EQ(read_message(text)["stop_reason"], "tool_use");
}

// Of disable_parallel_tool_use: what comes after the call is left out, and so is how it ended.
TEST(MessagesWriter, KeepsToOneCall) {
  api::AnswerOptions options = *message_options();
  options.single_call = true;
  const auto single = std::make_shared<const api::AnswerOptions>(options);
  RequestOutput output;
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  output.text = "I look." + call + call + "Hi";
  output.finish_reason = FinishReason::kLength;
  const Json body = Json::parse(body_of(single, {output}));
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_EQ(body["content"].size(), 2U) << body;
  options.clamped_max_tokens = 9;
  const auto clamped = std::make_shared<const api::AnswerOptions>(options);
  EXPECT_EQ(Json::parse(body_of(clamped, {output}))["usage"]["clamped_max_tokens"], 9);
  EXPECT_FALSE(body["usage"].contains("clamped_max_tokens"));
}

// As an answer that is cut by the limit of time.
TEST(MessagesWriter, ACancelledAnswerIsCut) {
  const OptionsPtr options = message_options();
  for (const std::string text : {"Hi", "<tool_call>{\"name\": \"f\"", ""}) {
    RequestOutput output;
    output.text = text;
    output.finish_reason = FinishReason::kCancelled;
    EXPECT_EQ(Json::parse(body_of(options, {output}))["stop_reason"], "max_tokens") << text;
    api::AnswerStream stream(options, writer_of(options));
    std::string events = rendered(stream.start());
    events += rendered(stream.delta(0, output, at_ms(1)));
    events += rendered(stream.end({}));
    EXPECT_EQ(read_message(events)["stop_reason"], "max_tokens") << text;
  }
}

TEST(MessagesWriter, ErrorsEndIt) {
  const OptionsPtr options = message_options();
  api::AnswerStream stream(options, writer_of(options));
  EXPECT_EQ(rendered(stream.fail({.status = 500, .message = "the device failed"})),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\","
            "\"message\":\"the device failed\"},\"request_id\":\"r1\"}\n\n");
  EXPECT_EQ(writer_of(options)->abort_fault()->status, 503);
}

TEST(MessagesFault, HasTheTypesOfTheApi) {
  for (const auto& [status, type] : {std::pair{400, "invalid_request_error"},
                                     {401, "authentication_error"},
                                     {403, "permission_error"},
                                     {404, "not_found_error"},
                                     {405, "invalid_request_error"},
                                     {413, "request_too_large"},
                                     {415, "invalid_request_error"},
                                     {429, "rate_limit_error"},
                                     {500, "api_error"},
                                     {503, "overloaded_error"}}) {
    const Json body =
        Json::parse(api::message_fault_body({.status = status, .message = "m\xff"}, "id"));
    EXPECT_EQ(body.dump(), R"({"error":{"message":"m)"
                           "\ufffd"
                           R"(","type":")" +
                               std::string(type) + R"("},"request_id":"id","type":"error"})");
  }
  const http::Fault full = {.message = "This model's",
                            .context_length = http::ContextLength{100, 100, 1}};
  EXPECT_EQ(Json::parse(api::message_fault_body(full, ""))["error"]["message"],
            "prompt is too long: 100 tokens > 99 maximum");
}

}  // namespace
}  // namespace sluice
