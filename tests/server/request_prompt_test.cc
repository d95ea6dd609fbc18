// Prompts of requests: variables of templates, faults that name the place, and ids that are those
// of the rendered text.
#include "server/api/request/request_prompt.h"

#include <string>

#include <gtest/gtest.h>

#include "tokenizer/byte_tokenizer.h"

namespace sluice::api {
namespace {

// Writes what it is given.
constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if tools %}[{{ tools | length }}]{% endif %}"
    "{% if enable_thinking is defined %}T{{ enable_thinking }}{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kEffortTemplate = "{{ messages[0].content }}{{ reasoning_effort }}";

ChatRequest chat_of(const std::string& members, const ChatTemplate* chat = nullptr) {
  const std::string body = "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}]" + members + "}";
  return std::get<ChatRequest>(read_chat(body, {.defaults = {}, .vocab_size = 256, .chat = chat}));
}

Conversation conversation_of(const std::string& members) { return chat_of(members).conversation; }

struct Model {
  explicit Model(const char* text = kTemplate) : chat(text, {{"bos_token", "<s>"}}) {}
  PromptTools tools() const { return {.tokenizer = tokenizer, .chat = chat}; }
  std::string text(const Conversation& conversation) const {
    auto segments = render_conversation(conversation, tools());
    if (const auto* fault = std::get_if<http::Fault>(&segments)) return "fault: " + fault->message;
    return text_of(std::get<std::vector<TextSegment>>(segments));
  }
  http::Fault fault(const std::string& members) const {
    auto segments = render_conversation(conversation_of(members), tools());
    if (const auto* fault = std::get_if<http::Fault>(&segments)) return *fault;
    ADD_FAILURE() << members;
    return {};
  }

  Tokenizer tokenizer = make_byte_tokenizer();
  ChatTemplate chat;
};

std::string model_text(const Model& model, const std::string& members) {
  return model.text(chat_of(members, &model.chat).conversation);
}

TEST(RequestPrompt, RendersTheConversation) {
  const Model model;
  EXPECT_EQ(model.text(conversation_of("")), "<user>u<assistant>");
  EXPECT_EQ(model.text(conversation_of(R"(,"add_generation_prompt":false)")), "<user>u");
  EXPECT_EQ(model.text(conversation_of(R"(,"continue_final_message":true)")), "<user>u");
  EXPECT_EQ(model.text(conversation_of(R"(,"tools":[{"function":{"name":"f"}}])")),
            "<user>u[1]<assistant>");
}

TEST(RequestPrompt, EffortBecomesAVariableThatTheTemplateReads) {
  const Model switched;
  EXPECT_EQ(switched.text(conversation_of(R"(,"reasoning_effort":"none")")),
            "<user>uTFalse<assistant>");
  EXPECT_EQ(switched.text(conversation_of(R"(,"reasoning_effort":"high")")), "<user>u<assistant>");
  EXPECT_EQ(switched.text(conversation_of(
                R"(,"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})")),
            "<user>uTTrue<assistant>");
  Conversation asked = conversation_of("");
  asked.enable_thinking = true;
  EXPECT_EQ(switched.text(asked), "<user>uTTrue<assistant>");
  const Model graded(kEffortTemplate);
  EXPECT_EQ(graded.text(asked), "u");
  EXPECT_EQ(graded.text(conversation_of(R"(,"reasoning_effort":"high")")), "uhigh");
  EXPECT_EQ(graded.text(conversation_of(R"(,"reasoning_effort":"none")")), "u");
}

// Clients send variables of other models' templates; vLLM takes them, too.
TEST(RequestPrompt, VariablesThatTheTemplateDoesNotReadAreIgnored) {
  const Model model;
  const ChatRequest request = chat_of(
      R"(,"chat_template_kwargs":{"enable_thoughts":1,"enable_thinking":true,"bos_token":"x"})",
      &model.chat);
  EXPECT_EQ(model.text(request.conversation), "<user>uTTrue<assistant>");
  EXPECT_EQ(request.unknown.names, (std::vector<std::string>{"chat_template_kwargs.enable_thoughts",
                                                             "chat_template_kwargs.bos_token"}));
  EXPECT_EQ(request.unknown.count, 2U);
  const ChatRequest set = chat_of(R"(,"chat_template_kwargs":{"messages":1})", &model.chat);
  EXPECT_TRUE(model.text(set.conversation).starts_with("fault: chat_template_kwargs has"))
      << "the template would read it";
  const auto tokenize = read_tokenize(
      R"({"messages":[{"role":"user","content":"u"}],"chat_template_kwargs":{"other":1}})",
      {.defaults = {}, .vocab_size = 256, .chat = &model.chat});
  EXPECT_EQ(std::get<TokenizeRequest>(tokenize).unknown.count, 1U);
}

// With tool_choice none a template that knows no tools has nothing to say of them.
TEST(RequestPrompt, ToolsThatMayNotBeCalledNeedNoTemplate) {
  const std::string tools = R"(,"tools":[{"function":{"name":"f"}}])";
  const Model plain(kEffortTemplate), reading;
  EXPECT_TRUE(model_text(plain, tools).starts_with("fault: tools are given"));
  EXPECT_EQ(model_text(plain, tools + R"(,"tool_choice":"none")"), "u");
  EXPECT_EQ(model_text(reading, tools + R"(,"tool_choice":"none")"), "<user>u[1]<assistant>");
}

TEST(RequestPrompt, FaultsNameThePlace) {
  const Model model;
  for (const char* name : {"enable_thoughts", "messages", "tools", "bos_token"}) {
    const std::string kwargs = std::string(R"(,"chat_template_kwargs":{")") + name + "\":1}";
    const http::Fault fault = model.fault(kwargs);
    EXPECT_EQ(fault.param, "chat_template_kwargs") << name;
    EXPECT_EQ(fault.status, 400) << name;
    EXPECT_NE(fault.message.find("it may give enable_thinking"), std::string::npos)
        << fault.message;
  }
  const auto of_messages = [&](const std::string& messages) {
    Conversation conversation = conversation_of("");
    conversation.messages = Json::parse(messages);
    return std::get<http::Fault>(render_conversation(conversation, model.tools()));
  };
  EXPECT_EQ(of_messages(R"([{"role":"user"},{"role":"robot"}])").param, "messages[1].role");
  EXPECT_EQ(of_messages(R"([{"content":"a"}])").param, "messages[0].role");
  EXPECT_EQ(of_messages(R"([{"role":"user","content":[{"type":"image_url"}]}])").param,
            "messages[0].content[0].type");
  EXPECT_EQ(of_messages(R"([{"role":"user","content":[{"type":"input_audio"}]}])").status, 400);
}

TEST(RequestPrompt, WithoutATemplateTheReasonIsGiven) {
  const Model model("");
  const http::Fault fault = model.fault(R"(,"chat_template_kwargs":{"a":1})");
  EXPECT_EQ(fault.message, model.chat.problem());
  EXPECT_EQ(fault.status, 400);
}

TEST(RequestPrompt, IdsAreThoseOfTheText) {
  const Model model;
  const auto tokenize = [&](const std::string& body) {
    const auto request = read_tokenize(body, {.defaults = {}, .vocab_size = 256});
    return std::get<std::vector<int32_t>>(
        ids_of(std::get<TokenizeRequest>(request), model.tools()));
  };
  const auto bytes = [](std::string_view text) {
    return std::vector<int32_t>(text.begin(), text.end());
  };
  EXPECT_EQ(tokenize(R"({"prompt":"ab"})"), bytes("ab"));
  EXPECT_TRUE(tokenize(R"({"prompt":""})").empty());
  EXPECT_EQ(tokenize(R"({"messages":[{"role":"user","content":"u"}]})"),
            bytes("<user>u<assistant>"));
  EXPECT_EQ(
      std::get<std::vector<int32_t>>(input_ids(std::vector<int32_t>{3, 4}, {}, model.tokenizer)),
      (std::vector<int32_t>{3, 4}));
}

}  // namespace
}  // namespace sluice::api
