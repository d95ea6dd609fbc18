// Calls that must come, and calls of strict functions, over HTTP on all routes of chats.
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/grammar.h"
#include "server/app/rig.h"
#include "server/messages_client.h"
#include "server/responses/response_client.h"

namespace sluice::server {
namespace {

using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::body_of;
using testing::Json;
using testing::post;
using testing::RawClient;

const char* const kChatPath = "/v1/chat/completions";
const char* const kResponsePath = "/v1/responses";
const char* const kMessagePath = "/v1/messages";

// Short, since a byte is a token.
constexpr const char* kToolTemplate = R"({%- for m in messages %}[{{ m.role }}]{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endfor %}{% if tools %}({{ tools | length }}){% endif %}
{%- if add_generation_prompt %}[assistant]{% endif %})";

AppOptions with_tools(std::optional<ToolFormat> format = std::nullopt) {
  const auto path = std::filesystem::path(::testing::TempDir()) /
                    ("calls_" + std::to_string(::getpid()) + ".jinja");
  std::ofstream(path) << kToolTemplate;
  AppOptions options;
  options.engine.chat_template = path;
  options.tool_format = format;
  return options;
}

Json paint_schema() {
  return Json::parse(R"({"type":"object","properties":{"colour":{"enum":["red","blue"]}},
                         "required":["colour"],"additionalProperties":false})");
}

Json chat_tool(const char* name, bool is_strict = false, Json schema = paint_schema()) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"strict", is_strict}, {"parameters", std::move(schema)}}}};
}

Json chat_request(int seed = 1) {
  return {{"messages", {{{"role", "user"}, {"content", "a"}}}},
          {"tools", {chat_tool("paint"), chat_tool("draw")}},
          {"seed", seed},
          {"max_tokens", 300}};
}

Json response_request(int seed = 1) {
  Json request = {{"input", "a"}, {"seed", seed}, {"max_output_tokens", 300}};
  for (const char* name : {"paint", "draw"}) {
    request["tools"].push_back(
        {{"type", "function"}, {"name", name}, {"parameters", paint_schema()}});
  }
  return request;
}

Json message_request(int seed = 1) {
  Json request = {
      {"messages", {{{"role", "user"}, {"content", "a"}}}}, {"seed", seed}, {"max_tokens", 300}};
  for (const char* name : {"paint", "draw"}) {
    request["tools"].push_back({{"name", name}, {"input_schema", paint_schema()}});
  }
  return request;
}

// Name and arguments of each call.
using CallList = std::vector<std::pair<std::string, Json>>;

bool are_arguments(const Json& arguments) {
  return arguments == Json{{"colour", "red"}} || arguments == Json{{"colour", "blue"}};
}

CallList calls_of_chat(const Json& body) {
  CallList calls;
  for (const Json& call : body["choices"][0]["message"].value("tool_calls", Json::array())) {
    calls.emplace_back(call["function"]["name"],
                       Json::parse(call["function"]["arguments"].get<std::string>()));
  }
  return calls;
}

CallList calls_of_response(const Json& body) {
  CallList calls;
  for (const Json& item : body["output"]) {
    if (item["type"] != "function_call") continue;
    calls.emplace_back(item["name"], Json::parse(item["arguments"].get<std::string>()));
  }
  return calls;
}

template <typename AnyJson>
CallList calls_of_message(const AnyJson& body) {
  CallList calls;
  for (const auto& block : body["content"]) {
    if (block["type"] == "tool_use") {
      calls.emplace_back(block["name"], Json::parse(block["input"].dump()));
    }
  }
  return calls;
}

CallList calls_of_stream(const std::vector<std::string>& events) {
  CallList calls;
  for (const std::string& event : events) {
    if (event == "[DONE]") break;
    for (const Json& choice : Json::parse(event).value("choices", Json::array())) {
      for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
        const Json& function = call["function"];
        if (function.contains("name")) calls.emplace_back(function["name"], Json(""));
        calls.back().second =
            calls.back().second.get<std::string>() + function.value("arguments", std::string());
      }
    }
  }
  for (auto& [name, arguments] : calls) arguments = Json::parse(arguments.get<std::string>());
  return calls;
}

Json posted(const App& app, const char* path, const Json& request) {
  const std::string answer = post(app, path, request);
  EXPECT_EQ(status_of(answer), 200) << answer;
  return body_of(answer);
}

class AppCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    app_ = std::make_unique<App>(with_tools());
    app_->serve();
  }

  std::unique_ptr<App> app_;
};

void expect_calls(const CallList& calls, const std::set<std::string>& names) {
  EXPECT_FALSE(calls.empty());
  for (const auto& [name, arguments] : calls) {
    EXPECT_TRUE(names.contains(name)) << name;
    EXPECT_TRUE(are_arguments(arguments)) << arguments;
  }
}

TEST_F(AppCalls, AreForcedInChats) {
  int num_ended = 0;
  for (int seed = 0; seed < 6; ++seed) {
    Json request = chat_request(seed);
    request["tool_choice"] = "required";
    const Json body = posted(*app_, kChatPath, request);
    expect_calls(calls_of_chat(body), {"paint", "draw"});
    EXPECT_EQ(calls_of_stream(testing::stream(*app_, kChatPath, request)), calls_of_chat(body));
    num_ended += body["choices"][0]["finish_reason"] == "tool_calls" ? 1 : 0;

    request["parallel_tool_calls"] = false;
    const Json single = posted(*app_, kChatPath, request);
    EXPECT_EQ(calls_of_chat(single).size(), 1U);
    EXPECT_EQ(single["choices"][0]["finish_reason"], "tool_calls");
    EXPECT_TRUE(single["choices"][0]["message"]["content"].is_null()) << single;
  }
  EXPECT_GT(num_ended, 0);
}

TEST_F(AppCalls, AreOfTheFunctionThatIsNamed) {
  Json request = chat_request();
  request["tool_choice"] = {{"type", "function"}, {"function", {{"name", "draw"}}}};
  const Json chat = posted(*app_, kChatPath, request);
  expect_calls(calls_of_chat(chat), {"draw"});
  EXPECT_EQ(calls_of_chat(chat).size(), 1U);
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "stop") << "as OpenAI's";

  request = response_request();
  request["tool_choice"] = {{"type", "function"}, {"name", "paint"}};
  const Json response = posted(*app_, kResponsePath, request);
  expect_calls(calls_of_response(response), {"paint"});
  EXPECT_EQ(response["tool_choice"], request["tool_choice"]);
  EXPECT_EQ(response["status"], "completed");
  testing::ResponseClient client;
  for (const std::string& event : testing::stream(*app_, kResponsePath, request)) {
    client.take(Json::parse(event));
  }
  EXPECT_EQ(client.types().back(), "response.completed");

  request = message_request();
  request["tool_choice"] = {{"type", "tool"}, {"name", "draw"}};
  const Json message = posted(*app_, kMessagePath, request);
  expect_calls(calls_of_message(message), {"draw"});
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

TEST_F(AppCalls, AreForcedInResponsesAndMessages) {
  for (int seed = 0; seed < 3; ++seed) {
    Json request = response_request(seed);
    request["tool_choice"] = "required";
    expect_calls(calls_of_response(posted(*app_, kResponsePath, request)), {"paint", "draw"});
    request["tool_choice"] = {{"type", "allowed_tools"}, {"mode", "required"}};
    request["tool_choice"]["tools"] = Json::array({{{"type", "function"}, {"name", "draw"}}});
    request["parallel_tool_calls"] = false;
    const CallList allowed = calls_of_response(posted(*app_, kResponsePath, request));
    expect_calls(allowed, {"draw"});
    EXPECT_EQ(allowed.size(), 1U);

    request = message_request(seed);
    request["tool_choice"] = {{"type", "any"}, {"disable_parallel_tool_use", true}};
    const Json message = posted(*app_, kMessagePath, request);
    expect_calls(calls_of_message(message), {"paint", "draw"});
    EXPECT_EQ(calls_of_message(message).size(), 1U);
    request["stream"] = true;
    RawClient client(app_->server->port());
    client.send(testing::post_text(kMessagePath, request.dump()));
    testing::MessagesClient reader;
    std::string events;
    for (const std::string& data : testing::read_events(client)) {
      events +=
          "event: " + Json::parse(data)["type"].get<std::string>() + "\ndata: " + data + "\n\n";
    }
    reader.read(events);
    EXPECT_EQ(calls_of_message(reader.message()), calls_of_message(message));
  }
}

// A schema of a function that is not strict is kept as far as it can be, and the log has the rest.
TEST(AppLenientCalls, KeepWhatCanBeKept) {
  AppOptions options = with_tools();
  std::mutex mutex;
  std::string ignored;
  options.log = [&](const metrics::RequestLogEntry& entry) {
    const std::lock_guard lock(mutex);
    if (!entry.ignored_fields.empty()) ignored = entry.ignored_fields;
  };
  App app(options);
  app.serve();
  Json request = chat_request();
  Json schema = paint_schema();
  schema["properties"]["colour"]["format"] = "idn-email";
  request["tools"] = Json::array({chat_tool("paint", false, schema)});
  request["tool_choice"] = "required";
  request["parallel_tool_calls"] = false;
  expect_calls(calls_of_chat(posted(app, kChatPath, request)), {"paint"});
  EXPECT_TRUE(testing::happens_soon([&] {
    const std::lock_guard lock(mutex);
    return ignored.starts_with("tools[0] (paint): ") && ignored.find("/colour") != ignored.npos;
  })) << ignored;
  request["tools"] = {chat_tool("draw"), chat_tool("paint", true, schema)};
  for (const char* choice : {"required", "auto"}) {
    request["tool_choice"] = choice;
    const std::string answer = post(app, kChatPath, request);
    EXPECT_EQ(status_of(answer), 400) << answer;
    EXPECT_NE(answer.find("tools[1] (paint): schema: format at /properties/colour"), answer.npos)
        << answer;
  }
}

TEST_F(AppCalls, MayStandBesideJson) {
  int num_calls = 0, num_answers = 0;
  for (int seed = 0; seed < 12; ++seed) {
    Json request = chat_request(seed);
    request["tools"] = {chat_tool("paint", true), chat_tool("draw", true)};
    request["parallel_tool_calls"] = false;
    request["logit_bias"] = {{"60", seed % 2 == 0 ? 5 : -5}};  // <
    request["response_format"] = Json::parse(
        R"({"type":"json_schema","json_schema":{"name":"n","schema":{"enum":["yes","no"]}}})");
    const Json body = posted(*app_, kChatPath, request);
    const CallList calls = calls_of_chat(body);
    if (calls.empty()) {
      const Json& content = body["choices"][0]["message"]["content"];
      EXPECT_TRUE(content == "\"yes\"" || content == "\"no\"") << body;
      ++num_answers;
    } else {
      expect_calls(calls, {"paint", "draw"});
      ++num_calls;
    }
    request["tool_choice"] = "required";
    EXPECT_EQ(status_of(post(*app_, kChatPath, request)), 400);
  }
  EXPECT_GT(num_calls, 0);
  EXPECT_GT(num_answers, 0);
}

// The answer begins as a call of Llama's does, which only strict functions make into one.
TEST(AppStrictCalls, AreHeldToTheirSchemaOnceTheyBegin) {
  App app(with_tools(ToolFormat::kLlama3Json));
  app.serve();
  Json request = chat_request();
  request["logit_bias"] = {{"123", 100}};  // {
  request["parallel_tool_calls"] = false;
  EXPECT_TRUE(calls_of_chat(posted(app, kChatPath, request)).empty());
  request["tools"] = {chat_tool("paint", true), chat_tool("draw", true)};
  const Json body = posted(app, kChatPath, request);
  expect_calls(calls_of_chat(body), {"paint", "draw"});
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  request["logit_bias"] = {{"123", -100}};
  const Json text = posted(app, kChatPath, request);
  EXPECT_TRUE(calls_of_chat(text).empty());
  EXPECT_FALSE(text["choices"][0]["message"]["content"].get<std::string>().empty());

  request = response_request();
  request["logit_bias"] = {{"123", 100}};
  request["parallel_tool_calls"] = false;
  for (Json& tool : request["tools"]) tool["strict"] = true;
  expect_calls(calls_of_response(posted(app, kResponsePath, request)), {"paint", "draw"});
  request = message_request();
  request["logit_bias"] = {{"123", 100}};
  request["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  for (Json& tool : request["tools"]) tool["strict"] = true;
  expect_calls(calls_of_message(posted(app, kMessagePath, request)), {"paint", "draw"});

  request = chat_request();
  request["response_format"] = {{"type", "json_object"}};
  EXPECT_EQ(status_of(post(app, kChatPath, request)), 400) << "both begin with a brace";
}

// Calls that must come, and calls of strict functions, with tags: on all routes they are JSON.
TEST(AppTaggedCalls, AreForcedAndRead) {
  App app(with_tools(ToolFormat::kQwen3Coder));
  app.serve();
  for (int seed = 1; seed <= 3; ++seed) {
    Json request = chat_request(seed);
    request["tool_choice"] = {{"type", "function"}, {"function", {{"name", "draw"}}}};
    expect_calls(calls_of_chat(posted(app, kChatPath, request)), {"draw"});
    request["tool_choice"] = "required";
    request["parallel_tool_calls"] = false;
    expect_calls(calls_of_chat(posted(app, kChatPath, request)), {"paint", "draw"});
    request = response_request(seed);
    request["tool_choice"] = "required";
    request["parallel_tool_calls"] = false;
    expect_calls(calls_of_response(posted(app, kResponsePath, request)), {"paint", "draw"});
    request = message_request(seed);
    request["tool_choice"] = {{"type", "tool"}, {"name", "paint"}};
    expect_calls(calls_of_message(posted(app, kMessagePath, request)), {"paint"});
  }
  Json request = chat_request();
  request["tools"] = {chat_tool("paint", true), chat_tool("draw", true)};
  EXPECT_EQ(status_of(post(app, kChatPath, request)), 200);
}

// Nothing can be forced, and no call of a strict function is read.
TEST(AppStrictCalls, NeedAFormThatIsKnown) {
  App app(with_tools(ToolFormat::kNone));
  app.serve();
  Json request = chat_request();
  request["max_tokens"] = 5;
  request["tools"] = Json::array({chat_tool("paint", true)});
  EXPECT_EQ(status_of(post(app, kChatPath, request)), 200);
  request["tool_choice"] = "required";
  const Json error = body_of(post(app, kChatPath, request))["error"];
  EXPECT_EQ(error["param"], "tool_choice");
  EXPECT_NE(error["message"].get<std::string>().find("--tool-call-parser"), std::string::npos);
}

}  // namespace
}  // namespace sluice::server
