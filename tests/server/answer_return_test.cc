// Whatever the server has sent can be sent back: every kind of answer in the next request, in the
// words of each route, with every golden template.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/answer_rig.h"
#include "server/api/answer/answer_body.h"
#include "server/api/messages/messages_request.h"
#include "server/api/messages/messages_writer.h"
#include "server/api/request/request_prompt.h"
#include "server/api/responses/response_request.h"
#include "server/api/responses/response_writer.h"
#include "tokenizer/answer_format.h"
#include "tokenizer/golden.h"

namespace sluice {
namespace {

using testing::answer_tokenizer;
using OrderedJson = nlohmann::ordered_json;

const api::RequestRules kRules{.defaults = {}, .vocab_size = 512};

struct Model {
  std::string name;
  ChatTemplate chat;
  AnswerFormat format;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all = [] {
    std::vector<Model> list;
    const auto folder = testing::golden_dir() / "templates";
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() != ".jinja") continue;
      const std::string name = file.path().stem();
      ChatTemplate chat(testing::golden_text("templates/" + name + ".jinja"),
                        {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
      const AnswerFormat format = recognise_answer_format(chat);
      list.push_back({name, std::move(chat), format});
    }
    return list;
  }();
  return all;
}

struct Answer {
  const char* name;
  std::string text;
  std::string shown;  // what the next prompt must have of it
  size_t num_calls = 0;
  FinishReason reason = FinishReason::kStop;
};

// Qwen3.5 and before print a call's values as Python does, later templates as JSON.
struct ValueWords {
  std::string yes = "True";
  std::string null = "None";
};

std::vector<Answer> coder_answers(const ValueWords& words) {
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto value = [](const std::string& key, const std::string& text) {
    return "<parameter=" + key + ">\n" + text + "\n</parameter>\n";
  };
  // What the next prompt has of it is what the model wrote, to the letter.
  const std::string whole = call(value("a", "value1"));
  const std::string all =
      call(value("a", " 1\n\"<b>\" ") + value("n", "-1.5") + value("b", words.yes) +
           value("z", words.null) + value("l", R"([1, "x", {"y": null}])"));
  return {
      {"plain", "Hi there.\n", "Hi there."},
      {"nothing", "", ""},
      {"thoughts", "<think>\nhm\n</think>\n\nHi there.", "Hi there."},
      {"cut thoughts", "<think>\nhm", "", 0, FinishReason::kLength},
      {"call", whole, whole, 1},
      {"calls", whole + "\n" + all, whole + "\n" + all, 2},
      {"call of all types", all, all, 1},
      {"call after thoughts", "<think>hm</think>\n\n" + whole, whole, 1},
      {"call without arguments", call(""), call(""), 1},
      {"text and call", "Let me see.\n" + whole, whole, 1},
      {"unreadable call", call("value1"), "value1"},
      {"cut call", whole.substr(0, whole.find("lue1") + 4), "value1", 0, FinishReason::kLength},
      {"call cut before its name", whole.substr(0, 20), "", 0, FinishReason::kLength},
      {"call and a cut one", whole + "\n" + whole.substr(0, whole.find("lue1") + 4), whole, 1,
       FinishReason::kLength},
  };
}

// What a model of this format writes.
std::vector<Answer> answers(const AnswerFormat& format, const ValueWords& words = {}) {
  const bool llama = format.tools == ToolFormat::kLlama3Json;
  if (format.tools == ToolFormat::kQwen3Coder) return coder_answers(words);
  const std::string open = llama ? "" : "<tool_call>\n", close = llama ? "" : "\n</tool_call>";
  const auto call = [&](const std::string& arguments) {
    return open + R"({"name": "f", ")" + (llama ? "parameters" : "arguments") + "\": " + arguments +
           "}" + close;
  };
  const std::string whole = call(R"({"a": "value1"})");
  const size_t one = format.tools == ToolFormat::kNone ? 0 : 1;
  std::vector<Answer> all = {
      {"plain", "Hi there.\n", "Hi there."},
      {"nothing", "", ""},
      {"white space", " \n", ""},
      {"thoughts", "<think>\nhm\n</think>\n\nHi there.", "Hi there."},
      {"thoughts alone", "<think>\nhm\n</think>", ""},
      {"cut thoughts", "<think>\nhm", "", 0, FinishReason::kLength},
      {"call", whole, "value1", one},
      {"calls", whole + "\n" + call(R"({"a": "value2"})"), "value2", 2 * one},
      {"call after thoughts", "<think>hm</think>\n\n" + whole, "value1",
       llama && !format.thinks ? 0 : one},
      {"call without arguments", call("{}"), "", one},
      {"call of nearly JSON", call("{\"a\": \"value1\n\"}"), "value1", one},
      {"unreadable call", call(R"({"a": "\d value1"})"), "value1"},
      {"cut call", whole.substr(0, whole.find("lue1") + 4), "value1", 0, FinishReason::kLength},
      {"call cut before its name", whole.substr(0, open.size() + 8), "", 0, FinishReason::kLength},
      {"call and a cut one", whole + "\n" + whole.substr(0, whole.find("lue1") + 4), "value1", one,
       FinishReason::kLength},
  };
  if (!llama) all.push_back({"text and call", "Let me see.\n" + whole + "\nDone!", "value1", one});
  return all;
}

OrderedJson tools(const Model& model) {
  OrderedJson all =
      OrderedJson::parse(R"([{"type":"function","function":{"name":"f","description":"d",
      "parameters":{"type":"object","properties":{"a":{"type":"string","description":"d"}},
      "required":[]}}}])");
  // Other templates cannot write all types, and other formats do not need them.
  if (model.format.tools != ToolFormat::kQwen3Coder) return all;
  OrderedJson& properties = all[0]["function"]["parameters"]["properties"];
  properties["n"] = {{"type", "number"}};
  properties["b"] = {{"type", "boolean"}};
  properties["z"] = {{"type", {"null", "string"}}};
  properties["l"] = {{"type", "array"}};
  return all;
}

std::shared_ptr<const api::AnswerOptions> options_of(const Model& model) {
  api::AnswerOptions options = testing::chat_options();
  options.format = model.format;
  options.tools = {
      {"f", std::make_shared<const OrderedJson>(tools(model)[0]["function"]["parameters"])}};
  return std::make_shared<const api::AnswerOptions>(std::move(options));
}

OrderedJson body_of(const Answer& answer, const std::shared_ptr<const api::AnswerOptions>& options,
                    std::shared_ptr<const api::AnswerWriter> writer) {
  api::AnswerBody body(options, std::move(writer));
  RequestOutput output;
  output.text = answer.text;
  output.finish_reason = answer.reason;
  body.add(0, std::move(output), testing::at_ms(1));
  return OrderedJson::parse(body.text({}));
}

// The prompt, or "fault: " and the text of the error.
template <typename Request>
std::string prompt_of(const Model& model, const api::Read<Request>& read) {
  if (const auto* fault = std::get_if<http::Fault>(&read)) return "fault: " + fault->message;
  std::tm now{};
  now.tm_mday = 1;
  const auto segments =
      api::render_conversation(std::get<Request>(read).conversation,
                               {.tokenizer = answer_tokenizer(), .chat = model.chat, .now = now});
  if (const auto* fault = std::get_if<http::Fault>(&segments)) return "fault: " + fault->message;
  return api::text_of(std::get<std::vector<TextSegment>>(segments));
}

std::string chat_prompt(const Model& model, const OrderedJson& messages) {
  OrderedJson request = {{"messages", messages}};
  if (model.chat.reads("tools")) request["tools"] = tools(model);
  return prompt_of(model, api::read_chat(request.dump(), kRules));
}

OrderedJson user(const char* text) { return {{"role", "user"}, {"content", text}}; }

// The answer, a result for each of its calls, and how the conversation goes on.
OrderedJson chat_history(const OrderedJson& answer) {
  OrderedJson messages = {user("q"), answer};
  const OrderedJson calls = answer.value("tool_calls", OrderedJson());
  for (const OrderedJson& call : calls) {
    messages.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "result"}});
  }
  if (!calls.empty()) messages.push_back({{"role", "assistant"}, {"content", "ok"}});
  messages.push_back(user("more"));
  return messages;
}

// By the template's own print of a call.
ValueWords value_words(const Model& model) {
  if (model.format.tools != ToolFormat::kQwen3Coder) return {};
  const OrderedJson call = {{"id", "c"},
                            {"type", "function"},
                            {"function", {{"name", "f"}, {"arguments", R"({"b": true})"}}}};
  const std::string prompt = chat_prompt(
      model, chat_history({{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}}));
  if (prompt.find("<parameter=b>\ntrue\n") != std::string::npos) return {"true", "null"};
  return {};
}

void expect_prompt(const std::string& prompt, const Answer& answer) {
  EXPECT_FALSE(prompt.starts_with("fault: ")) << prompt;
  EXPECT_NE(prompt.find(answer.shown), std::string::npos) << prompt;
}

// Calls `check(model, answer)` for each template and each answer of its format.
template <typename Check>
void for_each_answer(Check check) {
  ASSERT_GE(models().size(), 27U);
  for (const Model& model : models()) {
    for (const Answer& answer : answers(model.format, value_words(model))) {
      SCOPED_TRACE(model.name + ": " + answer.name);
      check(model, answer);
    }
  }
}

TEST(AnswerReturn, Chats) {
  for_each_answer([](const Model& model, const Answer& answer) {
    const auto options = options_of(model);
    const OrderedJson choice =
        body_of(answer, options, testing::openai_writer(options))["choices"][0];
    OrderedJson message = choice["message"];
    EXPECT_EQ(message.value("tool_calls", OrderedJson::array()).size(), answer.num_calls)
        << message;
    const bool calls = answer.num_calls > 0 && answer.reason == FinishReason::kStop;
    EXPECT_EQ(choice["finish_reason"] == "tool_calls", calls) << choice;
    const std::string prompt = chat_prompt(model, chat_history(message));
    expect_prompt(prompt, answer);
    // As clients write the same message: with all members of their types, or without null ones.
    OrderedJson full = message;
    for (const char* name : {"content", "refusal", "audio", "function_call", "tool_calls",
                             "reasoning", "reasoning_content", "thinking"}) {
      if (!full.contains(name)) full[name] = nullptr;
    }
    EXPECT_EQ(chat_prompt(model, chat_history(full)), prompt);
    if (message["content"].is_null()) {
      message.erase("content");
      EXPECT_EQ(chat_prompt(model, chat_history(message)), prompt);
      message["content"] = "";
      EXPECT_EQ(chat_prompt(model, chat_history(message)), prompt);
    }
  });
}

TEST(AnswerReturn, Messages) {
  for_each_answer([](const Model& model, const Answer& answer) {
    const auto options = options_of(model);
    const auto writer = std::make_shared<api::MessagesWriter>(options, answer_tokenizer());
    const OrderedJson content = body_of(answer, options, writer)["content"];
    OrderedJson results = OrderedJson::array();
    for (const OrderedJson& block : content) {
      if (block["type"] != "tool_use") continue;
      results.push_back(
          {{"type", "tool_result"}, {"tool_use_id", block["id"]}, {"content", "result"}});
    }
    EXPECT_EQ(results.size(), answer.num_calls) << content;
    OrderedJson messages = {user("q"), {{"role", "assistant"}, {"content", content}}};
    if (!results.empty()) {
      messages.push_back({{"role", "user"}, {"content", results}});
      messages.push_back({{"role", "assistant"}, {"content", "ok"}});
    }
    messages.push_back(user("more"));
    OrderedJson request = {{"max_tokens", 5}, {"messages", messages}};
    if (model.chat.reads("tools")) {
      request["tools"] = {
          {{"name", "f"}, {"input_schema", tools(model)[0]["function"]["parameters"]}}};
      request["tools"][0]["description"] = "d";
    }
    expect_prompt(prompt_of(model, api::read_messages(request.dump(), kRules)), answer);
  });
}

TEST(AnswerReturn, Responses) {
  for_each_answer([](const Model& model, const Answer& answer) {
    const auto options = options_of(model);
    const auto writer =
        std::make_shared<api::ResponseWriter>(options, api::ResponseFacts(), answer_tokenizer());
    const OrderedJson body = body_of(answer, options, writer);
    EXPECT_EQ(body["status"], answer.reason == FinishReason::kStop ? "completed" : "incomplete");
    OrderedJson input = OrderedJson::array({user("q")});
    std::vector<OrderedJson> calls;
    for (const OrderedJson& item : body["output"]) {
      if (item["type"] == "function_call") calls.push_back(item["call_id"]);
      input.push_back(item);
    }
    EXPECT_EQ(calls.size(), answer.num_calls) << body;
    for (const OrderedJson& id : calls) {
      input.push_back({{"type", "function_call_output"}, {"call_id", id}, {"output", "result"}});
    }
    if (!calls.empty()) input.push_back({{"role", "assistant"}, {"content", "ok"}});
    input.push_back(user("more"));
    OrderedJson request = {{"input", input}};
    if (model.chat.reads("tools")) {
      OrderedJson tool = tools(model)[0]["function"];
      tool["type"] = "function";
      request["tools"] = OrderedJson::array({tool});
    }
    expect_prompt(prompt_of(model, api::read_response(request.dump(), kRules)), answer);
  });
}

// Completions are texts: the answer goes on behind its prompt.
TEST(AnswerReturn, Completions) {
  for (const Answer& answer : answers({.tools = ToolFormat::kHermes})) {
    SCOPED_TRACE(answer.name);
    const auto options = std::make_shared<const api::AnswerOptions>(
        testing::text_options({{.ids = {'q'}, .text = "q"}}));
    const OrderedJson choice =
        body_of(answer, options, testing::openai_writer(options))["choices"][0];
    EXPECT_EQ(choice["text"], answer.text);
    EXPECT_EQ(choice["finish_reason"], answer.reason == FinishReason::kStop ? "stop" : "length");
    const OrderedJson request = {{"prompt", "q" + choice["text"].get<std::string>()}};
    EXPECT_TRUE(std::holds_alternative<api::CompletionRequest>(
        api::read_completion(request.dump(), kRules)));
  }
}

// Of any role, in a text and in a part.
TEST(AnswerReturn, NullIsAnEmptyText) {
  for (const Model& model : models()) {
    for (const char* role : {"system", "user", "assistant", "tool"}) {
      SCOPED_TRACE(model.name + ": " + role);
      const auto prompt = [&](const OrderedJson& content) {
        OrderedJson message = {{"role", role}, {"content", content}};
        OrderedJson messages = {user("q"), message, user("more")};
        if (std::string(role) == "system") messages = {message, user("q")};
        if (std::string(role) == "user") messages = OrderedJson::array({message});
        return chat_prompt(model, messages);
      };
      const auto part = [](const OrderedJson& text) {
        return OrderedJson::array({{{"type", "text"}, {"text", text}}});
      };
      EXPECT_EQ(prompt(nullptr), prompt(""));
      EXPECT_EQ(prompt(part(nullptr)), prompt(part("")));
    }
  }
  const auto messages = [](const OrderedJson& content) {
    const OrderedJson request = {{"max_tokens", 5},
                                 {"messages",
                                  {user("q"),
                                   {{"role", "assistant"}, {"content", content}},
                                   {{"role", "user"}, {"content", content}}}}};
    return prompt_of(models()[0], api::read_messages(request.dump(), kRules));
  };
  const OrderedJson block = {{"type", "text"}, {"text", nullptr}};
  EXPECT_EQ(messages(nullptr), messages(""));
  EXPECT_EQ(messages(OrderedJson::array({block})), messages(""));
  const auto response = [](const OrderedJson& content) {
    const OrderedJson request = {
        {"input", {user("q"), {{"role", "assistant"}, {"content", content}}, user("more")}}};
    return prompt_of(models()[0], api::read_response(request.dump(), kRules));
  };
  EXPECT_EQ(response(nullptr), response(""));
  EXPECT_EQ(response({{{"type", "output_text"}, {"text", nullptr}}}), response(""));
}

// Other servers stream calls as they come, and clients keep what they got of a cut one.
TEST(AnswerReturn, CutCallsOfOtherServers) {
  for (const Model& model : models()) {
    if (model.format.tools == ToolFormat::kNone) continue;
    SCOPED_TRACE(model.name);
    for (const char* arguments : {"{\"a\": \"value1", "[\"value1\"]", "\"value1\"", "value1"}) {
      const OrderedJson call = {{"id", "c"},
                                {"type", "function"},
                                {"function", {{"name", "f"}, {"arguments", arguments}}}};
      const OrderedJson message = {
          {"role", "assistant"}, {"content", nullptr}, {"tool_calls", OrderedJson::array({call})}};
      expect_prompt(chat_prompt(model, chat_history(message)), {"cut", "", "value1"});
      const OrderedJson input = {
          user("q"),
          {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", arguments}},
          {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "result"}}};
      OrderedJson request = {{"input", input}};
      OrderedJson tool = tools(model)[0]["function"];
      tool["type"] = "function";
      request["tools"] = OrderedJson::array({tool});
      expect_prompt(prompt_of(model, api::read_response(request.dump(), kRules)),
                    {"cut", "", "value1"});
    }
  }
}

}  // namespace
}  // namespace sluice
