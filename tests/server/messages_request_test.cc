// Bodies of the messages API as chats: each expected conversation is written out by hand.
#include "server/api/messages/messages_request.h"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "io/json_type.h"

namespace sluice::api {
namespace {

const RequestRules kMessageRules = {.defaults = {.temperature = 0.6f, .top_k = 20},
                                    .vocab_size = 1000};
const std::string kUser = R"({"role":"user","content":"a"})";

ChatRequest messages_request(const std::string& body) {
  auto read = read_messages(body, kMessageRules);
  if (const auto* fault = std::get_if<http::Fault>(&read)) {
    ADD_FAILURE() << body << ": " << fault->message;
    return {};
  }
  return std::get<ChatRequest>(std::move(read));
}

// A request with these further members, and with the messages.
ChatRequest with(const std::string& members, const std::string& messages = kUser) {
  return messages_request(R"({"max_tokens":9,"messages":[)" + messages + "]" + members + "}");
}

std::string messages_of(const std::string& messages, const std::string& members = "") {
  return with(members, messages).conversation.messages.dump();
}

// What is wrong with a request that has these members instead of good ones.
std::string refused(const std::string& members, const std::string& messages = kUser) {
  const auto read = read_messages(
      R"({"max_tokens":9,"messages":[)" + messages + "]" + members + "}", kMessageRules);
  const auto* fault = std::get_if<http::Fault>(&read);
  if (fault == nullptr) return "accepted";
  EXPECT_EQ(fault->status, 400);
  return fault->message;
}

TEST(MessagesRequest, HasTheSettingsOfAChat) {
  const ChatRequest request = with(
      R"(,"model":"m","temperature":0,"top_p":0.5,"top_k":7,"stop_sequences":["x","y"])"
      R"(,"stream":true)"
      R"(,"metadata":{"user_id":"u"},"service_tier":"auto","output_config":{"effort":"high"})"
      R"(,"cache_control":{"type":"ephemeral"},"context_management":{"edits":[]},"unheard_of":1)");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.params.temperature, 0.0f);
  EXPECT_EQ(request.params.top_p, 0.5f);
  EXPECT_EQ(request.params.top_k, 7);
  EXPECT_EQ(request.params.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(request.stream);
  EXPECT_FALSE(request.add_special_tokens) << "the template writes them";
  EXPECT_EQ(request.unknown.names, std::vector<std::string>{"unheard_of"});
  EXPECT_TRUE(request.conversation.add_generation_prompt);
  const ChatRequest plain = with("");
  EXPECT_EQ(plain.params.temperature, 0.6f);
  EXPECT_EQ(plain.params.top_k, 20);
  EXPECT_FALSE(plain.conversation.enable_thinking);
}

TEST(MessagesRequest, ReadsSystemPrompts) {
  const auto system = [](const std::string& value) {
    return messages_of(kUser, ",\"system\":" + value);
  };
  const std::string user = R"({"role":"user","content":"a"}])";
  EXPECT_EQ(system("null"), "[" + user);
  EXPECT_EQ(system(R"("s")"), R"([{"role":"system","content":"s"},)" + user);
  EXPECT_EQ(system(R"([{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}])"),
            R"([{"role":"system","content":"s"},)" + user);
  EXPECT_EQ(
      system(R"([{"type":"text","text":"s"},{"type":"text","text":"t"}])"),
      R"([{"role":"system","content":[{"type":"text","text":"s"},{"type":"text","text":"t"}]},)" +
          user);
  const std::string header = R"({"type":"text","text":"x-anthropic-billing-header: cc=1; x"})";
  EXPECT_EQ(system("[" + header + R"(,{"type":"text","text":"s"}])"),
            R"([{"role":"system","content":"s"},)" + user);
  EXPECT_EQ(system("[" + header + "]"), "[" + user);
  EXPECT_EQ(messages_of(kUser + R"(,{"role":"system","content":"now"},)" + kUser),
            R"([{"role":"user","content":"a"},{"role":"system","content":"now"},)" + user);
}

TEST(MessagesRequest, ReadsAToolRound) {
  EXPECT_EQ(
      messages_of(
          kUser +
          R"(,{"role":"assistant","content":[)"
          R"({"type":"thinking","thinking":"hm","signature":"s"},)"
          R"({"type":"redacted_thinking","data":"d"},)"
          R"({"type":"text","text":"I look."},)"
          R"({"type":"tool_use","id":"toolu_1","name":"f","input":{"b":1,"a":[]}},)"
          R"({"type":"tool_use","id":"toolu_2","name":"g","input":{}}]},)"
          R"({"role":"user","content":[)"
          R"({"type":"tool_result","tool_use_id":"toolu_1","content":"one"},)"
          R"({"type":"tool_result","tool_use_id":"toolu_2","is_error":true,)"
          R"("content":[{"type":"text","text":"t"},{"type":"text","text":"wo"}]},)"
          R"({"type":"tool_result","tool_use_id":"toolu_3"},{"type":"text","text":"go on"}]})"),
      R"([{"role":"user","content":"a"},)"
      R"({"role":"assistant","content":"I look.","reasoning_content":"hm","tool_calls":[)"
      R"({"id":"toolu_1","type":"function","function":{"name":"f","arguments":{"b":1,"a":[]}}},)"
      R"({"id":"toolu_2","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","tool_call_id":"toolu_1","name":"f","content":"one"},)"
      R"({"role":"tool","tool_call_id":"toolu_2","name":"g","content":[{"type":"text","text":"t"},)"
      R"({"type":"text","text":"wo"}]},)"
      R"({"role":"tool","tool_call_id":"toolu_3","content":""},)"
      R"({"role":"user","content":"go on"}])");
}

// Neighbours of one role are one turn; a text and its one block are the same.
TEST(MessagesRequest, JoinsNeighbours) {
  EXPECT_EQ(messages_of(R"({"role":"user","content":[{"type":"text","text":"a"}]})"),
            messages_of(kUser));
  EXPECT_EQ(
      messages_of(kUser + "," + R"({"role":"user","content":"b"})"),
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
  const std::string thought =
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"t"}]},)";
  EXPECT_EQ(messages_of(thought + thought + kUser),
            R"([{"role":"assistant","content":"","reasoning_content":"t\nt"},)"
            R"({"role":"user","content":"a"}])");
}

TEST(MessagesRequest, ContinuesTheAssistantsMessage) {
  const ChatRequest request =
      with("", kUser + R"(,{"role":"assistant","content":"The answer is ("})");
  EXPECT_TRUE(request.conversation.continue_final_message);
  EXPECT_FALSE(request.conversation.add_generation_prompt);
  EXPECT_NE(refused("", kUser + R"(,{"role":"assistant","content":[]})").find("no text"),
            std::string::npos);
  EXPECT_NE(refused("", kUser + R"(,{"role":"assistant","content":[{"type":"tool_use","id":"1",)"
                                R"("name":"f","input":{}}]})")
                .find("tool_result"),
            std::string::npos);
}

TEST(MessagesRequest, ReadsTools) {
  const ChatRequest request = with(
      R"(,"tools":[{"name":"f","description":"d","input_schema":{"type":"object"},)"
      R"("cache_control":{"type":"ephemeral"}},{"type":"web_search_20250305","name":"web_search"},)"
      R"({"type":"custom","name":"g","input_schema":{}},{"type":"bash_20250124","name":"bash"}])");
  EXPECT_EQ(request.conversation.tools.dump(),
            R"([{"type":"function","function":{"name":"f","description":"d",)"
            R"("parameters":{"type":"object"}}},)"
            R"({"type":"function","function":{"name":"g","parameters":{}}}])");
  EXPECT_EQ(request.skipped_tools, "web_search_20250305,bash_20250124");
  const ChatRequest skipped = with(R"(,"tools":[{"type":"web_search_20250305","name":"w"}])");
  EXPECT_TRUE(skipped.conversation.tools.is_null());
  const std::string one = R"(,"tools":[{"name":"f","input_schema":{}}])";
  EXPECT_EQ(with(one).tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(with(one + R"(,"tool_choice":{"type":"auto"})").tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(with(one + R"(,"tool_choice":{"type":"none"})").tool_choice, ToolChoice::kNone);
  const std::string single = R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})";
  EXPECT_EQ(with(one + single).tool_choice, ToolChoice::kAuto);
  EXPECT_FALSE(with(one + single).parallel_tool_calls);
  EXPECT_TRUE(with(one).parallel_tool_calls);
}

TEST(MessagesRequest, ReadsWhichCallsThereMustBe) {
  const std::string strict =
      R"(,"tools":[{"name":"e","input_schema":{}},{"name":"f","input_schema":{},"strict":true}])";
  EXPECT_EQ(with(strict).strict_tools, std::vector<std::string>{"f"});
  EXPECT_TRUE(with(strict).unknown.names.empty());
  EXPECT_EQ(with(strict + R"(,"tool_choice":{"type":"any"})").tool_choice, ToolChoice::kRequired);
  const ChatRequest named = with(strict + R"(,"tool_choice":{"type":"tool","name":"f"})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named.allowed_tools, std::vector<std::string>{"f"});
}

TEST(MessagesRequest, NamesFewTypesOfToolsThatItSkips) {
  std::string tools, named;
  for (int i = 0; i < 500; ++i) {
    const std::string type = "t" + std::to_string(i / 2);
    tools += (i > 0 ? "," : "") + (R"({"type":")" + type + R"(","name":"n"})");
    if (i % 2 == 0 && i < 32) named += (i > 0 ? "," : "") + type;
  }
  EXPECT_EQ(with(R"(,"tools":[)" + tools + "]").skipped_tools, named);
}

TEST(MessagesRequest, SwitchesThoughts) {
  const auto switched = [](const std::string& type) {
    return with(R"(,"thinking":{"type":")" + type +
                R"(","budget_tokens":1024,"display":"omitted"})")
        .conversation.enable_thinking;
  };
  EXPECT_EQ(switched("enabled"), true);
  EXPECT_EQ(switched("adaptive"), true);
  EXPECT_EQ(switched("between_tools"), true);
  EXPECT_EQ(switched("disabled"), false);
}

struct Wrong {
  const char* members;
  const char* place;  // the message begins with it
};

TEST(MessagesRequest, NamesWhatIsWrong) {
  for (const Wrong& one :
       {Wrong{R"(,"system":3)", "system is 3"},
        Wrong{R"(,"system":[{"type":"image"}])", "system[0] has the type \"image\""},
        Wrong{R"(,"system":[{"text":"a"}])", "system[0].type is missing"},
        Wrong{R"(,"stop_sequences":[""])", "stop_sequences[0] is"},
        Wrong{R"(,"temperature":-1)", "temperature is -1"},
        Wrong{R"(,"tool_choice":{"type":"any"})", "tool_choice asks for a call"},
        Wrong{R"(,"tool_choice":{"type":"tool","name":"f"})", "tool_choice names \"f\""},
        Wrong{R"(,"tool_choice":{"type":"tool"})", "tool_choice.name is missing"},
        Wrong{R"(,"tool_choice":{"type":"one"})", "tool_choice.type is \"one\""},
        Wrong{R"(,"tool_choice":{})", "tool_choice.type is missing"},
        Wrong{R"(,"tool_choice":"auto")", "tool_choice is \"auto\""},
        Wrong{R"(,"thinking":{"type":"on"})", "thinking.type is \"on\""},
        Wrong{R"(,"thinking":{"budget_tokens":3})", "thinking.type is missing"},
        Wrong{R"(,"tools":[{"name":"f"}])", "tools[0].input_schema is missing"},
        Wrong{R"(,"tools":[{"input_schema":{}}])", "tools[0].name is missing"},
        Wrong{R"(,"tools":[{"name":"","input_schema":{}}])", "tools[0].name is \"\""},
        Wrong{R"(,"tools":[{"name":"f","input_schema":[]}])", "tools[0].input_schema is"},
        Wrong{R"(,"tools":[{"type":3}])", "tools[0].type is 3"},
        Wrong{R"(,"container":"c")", "container is \"c\""},
        Wrong{R"(,"mcp_servers":[{}])", "mcp_servers is"},
        Wrong{R"(,"output_config":{"format":{"type":"json_schema"}})",
              "output_config.format.schema is missing"}}) {
    EXPECT_TRUE(refused(one.members).starts_with(one.place)) << refused(one.members);
  }
}

TEST(MessagesRequest, NamesTheMessageThatIsWrong) {
  const auto block = [](const std::string& role, const std::string& inner) {
    return kUser + R"(,{"role":")" + role + R"(","content":[)" + inner + "]}";
  };
  const std::string at = "messages[1].content[0]";
  for (const auto& [messages, place] : {
           std::pair{std::string(R"({"role":"user"})"),
                     std::string("messages[0].content is missing")},
           {R"({"content":"a"})", "messages[0].role is missing"},
           {R"({"role":"tool","content":"a"})", "messages[0].role is \"tool\""},
           {R"({"role":"user","content":3})", "messages[0].content is 3"},
           {R"({"role":"user","content":["a"]})", "messages[0].content[0] is \"a\""},
           {block("user", R"({"type":"text"})"), at + ".text is missing"},
           {block("user", R"({"type":"image","source":{}})"), at + " has the type \"image\""},
           {block("user", R"({"type":"tool_use","id":"1","name":"f","input":{}})"),
            at + " has the type \"tool_use\""},
           {block("user", R"({"type":"tool_result"})"), at + ".tool_use_id is missing"},
           {block("user",
                  R"({"type":"tool_result","tool_use_id":"1","content":[{"type":"image"}]})"),
            at + ".content[0] has the type \"image\""},
           {block("assistant", R"({"type":"tool_result","tool_use_id":"1"})"),
            at + " has the type \"tool_result\""},
           {block("assistant", R"({"type":"tool_use","id":"1","name":"f"})"),
            at + ".input is missing"},
           {block("assistant", R"({"type":"tool_use","id":"1","name":"f","input":"{}"})"),
            at + ".input is \"{}\""},
           {block("assistant", R"({"type":"thinking"})"), at + ".thinking is missing"},
           {R"({"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header"}]})",
            "messages has nothing"},
       }) {
    EXPECT_TRUE(refused("", messages).starts_with(place)) << refused("", messages);
  }
}

// A count needs no limit; a request does.
TEST(MessagesRequest, CountsHaveTheSamePrompt) {
  const std::string body = R"({"system":"s","messages":[)" + kUser +
                           R"(],"tools":[{"name":"f",)"
                           R"("input_schema":{}}])";
  const auto count = read_message_count(body + "}", kMessageRules);
  ASSERT_TRUE(std::holds_alternative<ChatRequest>(count));
  const Conversation& counted = std::get<ChatRequest>(count).conversation;
  const Conversation& asked = messages_request(body + ",\"max_tokens\":0}").conversation;
  EXPECT_EQ(counted.messages, asked.messages);
  EXPECT_EQ(counted.tools, asked.tools);
  const auto missing = read_messages(body + "}", kMessageRules);
  EXPECT_EQ(std::get<http::Fault>(missing).param, "max_tokens");
  EXPECT_NE(std::get<http::Fault>(read_messages("{", kMessageRules)).message.find("JSON"),
            std::string::npos);
}

TEST(MessagesRequest, FieldsHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const OptionFacts& facts : message_fields()) {
    EXPECT_TRUE(names.insert(facts.name).second) << facts.name;
    EXPECT_FALSE(facts.help.empty() && !has_effect(facts)) << facts.name;
  }
}

// Warming the cache: the engine computes the prompt and one token, which the answer leaves out.
TEST(MessagesRequest, MaxTokensMayBeZero) {
  const ChatRequest request = messages_request(R"({"max_tokens":0,"messages":[)" + kUser + "]}");
  EXPECT_EQ(std::get<int32_t>(resolve_max_tokens(request, 10, 100)), 1);
}

}  // namespace
}  // namespace sluice::api
