// tool_choice and strict of chats, as what a ChatRequest has.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/api/request/request.h"

namespace sluice::api {
namespace {

Read<ChatRequest> read_with(const std::string& members) {
  return read_chat(R"({"messages":[{"role":"user","content":"a"}],)" + members + "}",
                   {.defaults = {}, .vocab_size = 100});
}

ChatRequest chat_with(const std::string& members) {
  const auto read = read_with(members);
  const auto* fault = std::get_if<http::Fault>(&read);
  EXPECT_EQ(fault, nullptr) << fault->message;
  return fault == nullptr ? std::get<ChatRequest>(read) : ChatRequest();
}

const std::string kTwoTools =
    R"("tools":[{"function":{"name":"e"}},{"function":{"name":"f"}}],"tool_choice":)";

TEST(ToolChoices, AreReadInBothForms) {
  const auto with = [](const std::string& choice) { return chat_with(kTwoTools + choice); };
  EXPECT_EQ(with("\"none\"").tool_choice, ToolChoice::kNone);
  EXPECT_EQ(with("\"auto\"").tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(with("null").tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(with("\"required\"").tool_choice, ToolChoice::kRequired);
  EXPECT_TRUE(with("\"required\"").allowed_tools.empty());
  for (const char* choice :
       {R"({"type":"function","function":{"name":"f"}})", R"({"type":"function","name":"f"})"}) {
    EXPECT_EQ(with(choice).tool_choice, ToolChoice::kNamed);
    EXPECT_EQ(with(choice).allowed_tools, std::vector<std::string>{"f"});
  }
  const ChatRequest chats = with(R"({"type":"allowed_tools","allowed_tools":{"mode":"required",
      "tools":[{"type":"function","function":{"name":"e"}}]}})");
  EXPECT_EQ(chats.tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(chats.allowed_tools, std::vector<std::string>{"e"});
  const ChatRequest responses = with(R"({"type":"allowed_tools","mode":"auto",
      "tools":[{"type":"function","name":"f"},{"name":"e"}]})");
  EXPECT_EQ(responses.tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(responses.allowed_tools, (std::vector<std::string>{"f", "e"}));
}

TEST(ToolChoices, OfAnotherFormAreRefused) {
  for (const char* choice :
       {"{}", "[]", "1", "\"f\"", R"({"type":"function"})", R"({"type":"function","function":{}})",
        R"({"type":"function","function":"f"})", R"({"type":"function","name":"g"})",
        R"({"type":"custom","name":"f"})", R"({"type":"allowed_tools"})",
        R"({"type":"allowed_tools","mode":"none","tools":[{"name":"f"}]})",
        R"({"type":"allowed_tools","mode":"auto","tools":[]})",
        R"({"type":"allowed_tools","mode":"auto","tools":[1]})",
        R"({"type":"allowed_tools","mode":"auto","tools":[{"name":"g"}]})",
        R"({"type":"allowed_tools","allowed_tools":[]})"}) {
    const auto read = read_with(kTwoTools + choice);
    const auto* fault = std::get_if<http::Fault>(&read);
    ASSERT_NE(fault, nullptr) << choice;
    EXPECT_TRUE(fault->param.starts_with("tool_choice")) << choice << ": " << fault->param;
    EXPECT_TRUE(fault->message.starts_with("tool_choice")) << choice << ": " << fault->message;
  }
  const auto read = read_with(R"("tool_choice":"required")");
  const auto* fault = std::get_if<http::Fault>(&read);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->message, "tool_choice asks for a call, but there are no tools; give some");
}

TEST(StrictTools, AreNamed) {
  const auto strict = [](const std::string& function) {
    const ChatRequest request = chat_with(
        R"("tools":[{"function":{"name":"e"}},{"function":{"name":"f")" + function + "}}]");
    EXPECT_TRUE(request.unknown.names.empty());
    return request.strict_tools;
  };
  EXPECT_EQ(strict(R"(,"strict":true)"), std::vector<std::string>{"f"});
  for (const char* other : {"", R"(,"strict":false)", R"(,"strict":null)"}) {
    EXPECT_TRUE(strict(other).empty()) << other;
  }
}

}  // namespace
}  // namespace sluice::api
