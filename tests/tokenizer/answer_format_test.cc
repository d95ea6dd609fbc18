// The formats of the golden templates, and prompts that end inside of a thought.
#include "tokenizer/answer_format.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "tokenizer/calls/call_form.h"
#include "tokenizer/golden.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

ChatTemplate golden_template(const std::string& name) {
  return ChatTemplate(testing::golden_text("templates/" + name + ".jinja"),
                      {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
}

// By hand from the texts of the templates. smollm3 writes calls in a way of its own, and gemma4
// writes thoughts with other tags.
TEST(AnswerFormat, OfGoldenTemplates) {
  struct Row {
    bool thinks;
    ToolFormat tools;
  };
  constexpr ToolFormat kNone = ToolFormat::kNone, kHermes = ToolFormat::kHermes,
                       kLlama = ToolFormat::kLlama3Json, kCoder = ToolFormat::kQwen3Coder;
  const std::map<std::string, Row> rows = {
      {"chatml", {false, kNone}},
      {"deepseek-r1-distill", {true, kNone}},
      {"deepseek-v3", {true, kNone}},
      {"deepseek-v3.1", {true, kNone}},
      {"gemma2", {false, kNone}},
      {"gemma3", {false, kNone}},
      {"gemma4", {false, kNone}},
      {"gpt-oss", {false, kNone}},
      {"hermes3-tools", {false, kHermes}},
      {"llama3.1", {false, kLlama}},
      {"llama3.2-3b", {false, kLlama}},
      {"llama3.2", {false, kLlama}},
      {"llama3", {false, kNone}},
      {"ministral3-reasoning", {false, kNone}},
      {"mistral-nemo", {false, kNone}},
      {"mistral-small3.2", {false, kNone}},
      {"qwen2.5", {false, kHermes}},
      {"qwen2", {false, kNone}},
      {"qwen3-coder", {false, kCoder}},
      {"qwen3-first", {true, kHermes}},
      {"qwen3-instruct", {false, kHermes}},
      {"qwen3-thinking", {true, kHermes}},
      {"qwen3.5", {true, kCoder}},
      {"qwen3.6", {true, kCoder}},
      {"qwen3.8", {true, kCoder}},
      {"qwen3", {true, kHermes}},
      {"qwq", {true, kHermes}},
      {"smollm2", {false, kNone}},
      {"smollm3", {true, kNone}},
  };
  size_t num_files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(testing::golden_dir() / "templates")) {
    if (file.path().extension() != ".jinja") continue;
    ++num_files;
    const std::string name = file.path().stem();
    ASSERT_TRUE(rows.contains(name)) << name;
    const AnswerFormat format = recognise_answer_format(golden_template(name));
    EXPECT_EQ(format.thinks, rows.at(name).thinks) << name;
    EXPECT_EQ(format.tools, rows.at(name).tools) << name;
    EXPECT_FALSE(format.starts_in_thought);
  }
  EXPECT_EQ(num_files, rows.size());
}

// What a grammar forces is what the model has seen.
TEST(CallForm, IsWhatTheTemplatesWrite) {
  const Json call = {{"id", "call00000"},
                     {"type", "function"},
                     {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}};
  const Json messages =
      Json::array({{{"role", "user"}, {"content", "q"}},
                   {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}});
  const Json parameters = {{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}};
  const Json tools = Json::array(
      {{{"type", "function"},
        {"function", {{"name", "f"}, {"description", "d"}, {"parameters", parameters}}}}});
  for (const char* name : {"hermes3-tools", "llama3.1", "llama3.2", "llama3.2-3b", "qwen2.5",
                           "qwen3", "qwen3-coder", "qwen3-first", "qwen3-instruct",
                           "qwen3-thinking", "qwen3.5", "qwen3.6", "qwen3.8", "qwq"}) {
    const ChatTemplate chat = golden_template(name);
    const CallForm form = call_form(recognise_answer_format(chat).tools);
    std::string text;
    for (const TextSegment& segment : chat.render({.messages = messages, .tools = &tools}))
      text += segment.text;
    const auto& tags = form.parameters;
    const std::string want = tags ? form.begin + "f" + form.middle + tags->begin + "a" +
                                        tags->middle + "1" + tags->end + form.end
                                  : form.begin + "\"f\"" + form.middle + R"({"a": 1})" + form.end;
    EXPECT_NE(text.find(want), text.npos) << name << ": " << text;
  }
}

TEST(AnswerFormat, WithoutATemplateAllIsContent) {
  for (const char* source : {"", "{{ unclosed", "{{ raise_exception('no') }}"}) {
    const AnswerFormat format = recognise_answer_format(ChatTemplate(source, {}));
    EXPECT_FALSE(format.thinks) << source;
    EXPECT_EQ(format.tools, ToolFormat::kNone) << source;
  }
}

bool prompt_ends_in_thought(const std::string& name, const Json& messages, const Json& kwargs,
                            bool continues = false) {
  const ChatTemplate chat = golden_template(name);
  const auto prompt = chat.render({.messages = messages,
                                   .template_kwargs = &kwargs,
                                   .add_generation_prompt = !continues,
                                   .continue_final_message = continues});
  return format_of_answer({.thinks = true}, prompt, false).starts_in_thought;
}

// A turn whose prompt begins with the whole turn before it goes on from the state at the end of the
// answer; one that drops the thought is computed from the question on.
TEST(AnswerFormat, KeptThoughtsMakeTurnsAppendOnly) {
  const auto appends = [](const std::string& name, const Json& kwargs) {
    const ChatTemplate chat = golden_template(name);
    const auto text_of = [&](const Json& messages) {
      std::string text;
      for (const TextSegment& segment : chat.render(
               {.messages = messages, .template_kwargs = &kwargs, .add_generation_prompt = true})) {
        text += segment.text;
      }
      return text;
    };
    const Json user = {{"role", "user"}, {"content", "q"}};
    const Json answer = {{"role", "assistant"}, {"reasoning_content", "hm"}, {"content", "ok"}};
    const std::string first = text_of(Json::array({user})) + "hm\n</think>\n\nok<|im_end|>\n";
    return text_of(Json::array({user, answer, user})).starts_with(first);
  };
  EXPECT_FALSE(appends("qwen3.5", Json::object()));
  EXPECT_FALSE(appends("qwen3.6", Json::object()));
  EXPECT_TRUE(appends("qwen3.6", {{"preserve_thinking", true}}));
  EXPECT_TRUE(appends("qwen3.8", Json::object()));
  EXPECT_FALSE(appends("qwen3.8", {{"preserve_thinking", false}}));
}

TEST(AnswerFormat, PromptsThatEndInAThought) {
  const Json user = {{"role", "user"}, {"content", "is <think> a tag?"}};
  const Json messages = Json::array({user});
  const Json none = Json::object(), off = {{"enable_thinking", false}};
  EXPECT_FALSE(prompt_ends_in_thought("qwen3", messages, none));
  EXPECT_FALSE(prompt_ends_in_thought("qwen3", messages, off));
  EXPECT_TRUE(prompt_ends_in_thought("qwen3-thinking", messages, none));
  EXPECT_TRUE(prompt_ends_in_thought("qwq", messages, {{"enable_thinking", true}}));
  EXPECT_FALSE(prompt_ends_in_thought("qwq", messages, off));
  EXPECT_TRUE(prompt_ends_in_thought("qwen3.5", messages, none));
  EXPECT_FALSE(prompt_ends_in_thought("qwen3.5", messages, off));
  EXPECT_TRUE(prompt_ends_in_thought("qwen3.6", messages, none));
  EXPECT_TRUE(prompt_ends_in_thought("qwen3.8", messages, none));
  EXPECT_FALSE(prompt_ends_in_thought("llama3.1", messages, none));
  // The message that is continued counts; others do not.
  const Json open = {{"role", "assistant"}, {"content", "<think>\nhm"}};
  const Json closed = {{"role", "assistant"}, {"content", "<think>\nhm\n</think>\n\nSo"}};
  EXPECT_TRUE(prompt_ends_in_thought("chatml", Json::array({user, open}), none, true));
  EXPECT_FALSE(prompt_ends_in_thought("chatml", Json::array({user, closed}), none, true));
  EXPECT_FALSE(prompt_ends_in_thought("chatml", Json::array({user, open, user}), none));
}

TEST(AnswerFormat, OfOneAnswer) {
  const std::vector<TextSegment> open = {{"<think>\n", true}};
  const AnswerFormat qwen3{.thinks = true, .tools = ToolFormat::kHermes};
  EXPECT_TRUE(format_of_answer(qwen3, open, true).starts_in_thought);
  EXPECT_EQ(format_of_answer(qwen3, open, true).tools, ToolFormat::kHermes);
  EXPECT_EQ(format_of_answer(qwen3, open, false).tools, ToolFormat::kNone);
  EXPECT_FALSE(format_of_answer({.tools = ToolFormat::kHermes}, open, true).starts_in_thought)
      << "a model that does not think";
  EXPECT_FALSE(format_of_answer(qwen3, {}, true).starts_in_thought);
}

}  // namespace
}  // namespace sluice
