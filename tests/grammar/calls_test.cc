// Grammars of calls against the reader of calls: what is forced is what is read.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"
#include "grammar/structure_rules.h"
#include "io/json_type.h"
#include "sluice/error.h"
#include "tokenizer/answer_scanner.h"
#include "tokenizer/calls/call_form.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr const char* kPaint = R"({"type":"object","properties":{
    "colour":{"enum":["red","gr\"n"]},"size":{"type":"integer","minimum":-3,"maximum":40},
    "note":{"type":"string","maxLength":4}},
    "required":["colour"],"additionalProperties":false})";

// One with quotes in its name, one without parameters, one with a part that refers to itself.
std::vector<CallableFunction> functions() {
  return {
      {.name = "paint", .parameters = kPaint, .place = "tools[0]"},
      {.name = "s\"top", .parameters = R"({"additionalProperties":false})", .place = "tools[1]"},
      {.name = "walk",
       .parameters = R"({"$defs":{"step":{"type":"object","properties":{
               "to":{"enum":["n","s"]},"then":{"$ref":"#/$defs/step"}},"required":["to"],
               "additionalProperties":false}},"$ref":"#/$defs/step"})",
       .place = "tools[2]"}};
}

const CallableTools& tools() {
  static const CallableTools all = [] {
    CallableTools list;
    for (const CallableFunction& function : functions()) {
      list.emplace_back(function.name, std::make_shared<const nlohmann::ordered_json>(
                                           nlohmann::ordered_json::parse(function.parameters)));
    }
    return list;
  }();
  return all;
}

StructuredOutput calls_of(StructuredCalls calls) {
  StructuredOutput structure{.kind = StructureKind::kCalls};
  structure.calls = std::make_shared<const StructuredCalls>(std::move(calls));
  return structure;
}

std::string rules_of(StructuredCalls calls) {
  return structure_rules(calls_of(std::move(calls))).rules;
}

bool is_step(const json& step) {
  return step.is_object() && (step["to"] == "n" || step["to"] == "s") &&
         step.size() == (step.contains("then") ? 2u : 1u) &&
         (!step.contains("then") || is_step(step["then"]));
}

bool are_valid(const std::string& name, const json& arguments) {
  if (name == "walk") return is_step(arguments);
  if (name == "s\"top") return arguments == json::object();
  const json& colour = arguments.value("colour", json());
  const json size = arguments.value("size", json(0));
  const json note = arguments.value("note", json(""));
  return (colour == "red" || colour == "gr\"n") && size.is_number_integer() && size >= -3 &&
         size <= 40 && note.is_string();
}

// What a reader finds in a whole answer.
struct ReadAnswer {
  std::vector<std::pair<std::string, std::string>> calls;
  std::string content;
};

ReadAnswer read(ToolFormat format, const std::string& text) {
  AnswerScanner scanner({.tools = format}, tools());
  std::vector<AnswerEvent> events = scanner.push(text);
  for (AnswerEvent& event : scanner.finish(AnswerEnd::kModel)) events.push_back(std::move(event));
  ReadAnswer answer;
  for (const AnswerEvent& event : events) {
    if (event.kind == AnswerEvent::Kind::kCall) answer.calls.emplace_back(event.text, "");
    if (event.kind == AnswerEvent::Kind::kArguments) answer.calls.back().second = event.text;
    if (event.kind == AnswerEvent::Kind::kContent) answer.content += event.text;
  }
  return answer;
}

// Tokens as vocabularies of real models have them: markers whole and in parts, and parts that go on
// behind a marker.
std::vector<std::string> call_tokens() {
  return {"<tool_call>", "</tool_call>", "<tool",    "_call>",
          ">{",          ">\n",          ">\n\n",    "{\"",
          "name",        "\": \"",       "\", \"",   "}}",
          "}\n",         "},",           "}\n</",    "\"}",
          "; ",          "arguments",    " {",       "\n\n",
          "<|",          "python",       "[",        " \"",
          "<func",       "tion=",        ">\n<para", "meter",
          "</param",     "eter>",        "\n</",     "=",
          "x<tool_call", ">\n{\"na",     "{\"n",     "a <",
          "\n<t",        "red\"",        "é",        "\xF0\x9F"};
}

struct Walk {
  std::string text;
  bool has_ended = false;
};

// A text under the masks of the grammar. Markers are likelier than other tokens, and the end is
// unlikely while there are few.
Walk walk(const Grammar& grammar, const TokenTable& table, std::mt19937& random) {
  const auto matcher = grammar.make_matcher();
  std::vector<int32_t> words((table.bytes.size() + 31) / 32);
  Walk result;
  for (int step = 0; step < 250; ++step) {
    matcher->fill_mask(words);
    std::vector<int32_t> allowed, likely;
    for (size_t id = 0; id < table.bytes.size(); ++id) {
      if ((words[id / 32] >> (id % 32) & 1) == 0) continue;
      allowed.push_back(static_cast<int32_t>(id));
      if (id > kEndToken) likely.push_back(static_cast<int32_t>(id));
    }
    if (allowed.empty()) break;
    const bool prefers = !likely.empty() && random() % 2 == 0;
    const std::vector<int32_t>& from = prefers ? likely : allowed;
    int32_t next = from[random() % from.size()];
    if ((words[kEndToken / 32] >> (kEndToken % 32) & 1) != 0 && random() % 8 == 0) next = kEndToken;
    if (!matcher->accept(next)) break;
    result.has_ended = next == kEndToken;
    if (result.has_ended) break;
    result.text += table.bytes[static_cast<size_t>(next)];
  }
  return result;
}

class Calls : public ::testing::TestWithParam<ToolFormat> {
 protected:
  void SetUp() override {
    table_ = byte_tokens(call_tokens());
    vocabulary_ = std::make_shared<const Vocabulary>(table_);
  }
  std::shared_ptr<const Grammar> grammar(StructuredCalls calls) {
    calls.form = call_form(GetParam());
    if (calls.functions.empty()) calls.functions = functions();
    return std::make_shared<const Grammar>(rules_of(std::move(calls)), vocabulary_);
  }

  TokenTable table_;
  std::shared_ptr<const Vocabulary> vocabulary_;
};

TEST_P(Calls, ThatAreForcedAreRead) {
  std::mt19937 random(5);
  for (const bool is_single : {false, true}) {
    const auto forced = grammar({.form = {}, .functions = {}, .is_single = is_single});
    int num_ended = 0;
    size_t most = 0;
    for (int i = 0; i < 150; ++i) {
      const Walk one = walk(*forced, table_, random);
      if (!one.has_ended) continue;
      ++num_ended;
      const ReadAnswer answer = read(GetParam(), one.text);
      EXPECT_EQ(answer.content, "") << one.text;
      ASSERT_FALSE(answer.calls.empty()) << one.text;
      EXPECT_TRUE(!is_single || answer.calls.size() == 1) << one.text;
      most = std::max(most, answer.calls.size());
      for (const auto& [name, arguments] : answer.calls) {
        EXPECT_TRUE(are_valid(name, json::parse(arguments))) << one.text;
      }
    }
    EXPECT_GT(num_ended, 75);
    EXPECT_TRUE(is_single || most > 1) << most;
  }
}

// No call begins in the text around calls, and every call that begins is whole.
TEST_P(Calls, OfFreeAnswersAreRead) {
  std::mt19937 random(6);
  for (const bool is_single : {false, true}) {
    const auto free =
        grammar({.form = {}, .functions = {}, .is_required = false, .is_single = is_single});
    int num_with_calls = 0, num_without = 0;
    for (int i = 0; i < 300; ++i) {
      const Walk one = walk(*free, table_, random);
      if (!one.has_ended) continue;
      const ReadAnswer answer = read(GetParam(), one.text);
      EXPECT_TRUE(!has_call_tags(GetParam()) ||
                  answer.content.find("<tool_call>") == answer.content.npos)
          << one.text;
      EXPECT_TRUE(!is_single || answer.calls.size() <= 1) << one.text;
      (answer.calls.empty() ? num_without : num_with_calls) += 1;
      for (const auto& [name, arguments] : answer.calls) {
        EXPECT_TRUE(are_valid(name, json::parse(arguments))) << one.text;
      }
    }
    EXPECT_GT(num_with_calls, 5);
    EXPECT_GT(num_without, 5);
  }
}

// Each mask is what the tokens are, byte by byte.
TEST_P(Calls, HaveMasksThatEqualBruteForce) {
  std::mt19937 random(7);
  std::vector<int32_t> words((table_.bytes.size() + 31) / 32);
  for (const bool is_required : {true, false}) {
    const auto compiled = grammar({.form = {}, .functions = {}, .is_required = is_required});
    for (int document = 0; document < 25; ++document) {
      const auto matcher = compiled->make_matcher();
      const auto bytewise = compiled->make_matcher();
      for (int step = 0; step < 50; ++step) {
        matcher->fill_mask(words);
        std::vector<int32_t> allowed;
        for (size_t id = 0; id < table_.bytes.size(); ++id) {
          const std::string& text = table_.bytes[id];
          const size_t taken = accept_bytes(*bytewise, text);
          bytewise->rollback(static_cast<int64_t>(taken));
          const bool is_allowed = static_cast<int32_t>(id) == kEndToken
                                      ? bytewise->is_complete()
                                      : !text.empty() && taken == text.size();
          ASSERT_EQ((words[id / 32] >> (id % 32) & 1) != 0, is_allowed)
              << "token \"" << text << "\" at step " << step;
          const bool is_piece = id > kEndToken || random() % 8 == 0;
          if (is_allowed && is_piece) allowed.push_back(static_cast<int32_t>(id));
        }
        if (allowed.empty()) break;
        const int32_t next = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher->accept(next));
        if (next == kEndToken) break;
        accept_bytes(*bytewise, table_.bytes[static_cast<size_t>(next)]);
      }
    }
  }
}

// A long answer without calls takes no longer for its length.
TEST_P(Calls, LetLongTextsThrough) {
  const auto free = grammar({.form = {}, .functions = {}, .is_required = false});
  std::string text = "So.";
  for (int i = 0; i < 4000; ++i) text += " a < b; <tool <tool_cal {";
  EXPECT_TRUE(accepts(*free, text));
}

INSTANTIATE_TEST_SUITE_P(Formats, Calls,
                         ::testing::Values(ToolFormat::kHermes, ToolFormat::kLlama3Json,
                                           ToolFormat::kQwen3Coder));

class CallRules : public ::testing::Test {
 protected:
  void SetUp() override {}
  static std::shared_ptr<const Grammar> compiled(ToolFormat format, StructuredCalls calls) {
    static const auto vocabulary = std::make_shared<const Vocabulary>(byte_tokens());
    calls.form = call_form(format);
    calls.functions = {{.name = "f", .parameters = "", .place = "tools[0]"}};
    return std::make_shared<const Grammar>(rules_of(std::move(calls)), vocabulary);
  }
};

TEST_F(CallRules, OfHermes) {
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":[1]}}\n</tool_call>";
  const auto forced = compiled(ToolFormat::kHermes, {.form = {}, .functions = {}});
  EXPECT_TRUE(accepts(*forced, call));
  EXPECT_TRUE(accepts(*forced, "\n\n" + call + "\n" + call));
  for (const std::string& text : {std::string(), "x" + call, call + "x", std::string("{}")}) {
    EXPECT_FALSE(accepts(*forced, text)) << text;
  }
  const auto free =
      compiled(ToolFormat::kHermes, {.form = {}, .functions = {}, .is_required = false});
  for (const std::string& text :
       {std::string(), std::string("a <tool_cal> b <tool_call"), "I call: " + call + " done",
        call + call + "\n" + call, std::string("</tool_call>{\"name\":\"f\"}")}) {
    EXPECT_TRUE(accepts(*free, text)) << text;
  }
  EXPECT_FALSE(accepts(*free, "a <tool_call> b"));
  EXPECT_FALSE(accepts(*free, "<<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"));
  const auto single = compiled(
      ToolFormat::kHermes, {.form = {}, .functions = {}, .is_required = false, .is_single = true});
  EXPECT_TRUE(accepts(*single, "so"));
  EXPECT_TRUE(accepts(*single, "so " + call));
  EXPECT_FALSE(accepts(*single, call + "\n" + call));
  EXPECT_FALSE(accepts(*single, call + "\nso"));
}

TEST_F(CallRules, OfLlama) {
  const std::string call = R"({"name": "f", "parameters": {"a":[1]}})";
  const auto forced = compiled(ToolFormat::kLlama3Json, {.form = {}, .functions = {}});
  EXPECT_TRUE(accepts(*forced, call));
  EXPECT_TRUE(accepts(*forced, call + "; " + call));
  EXPECT_FALSE(accepts(*forced, call + "x"));
  const auto free =
      compiled(ToolFormat::kLlama3Json, {.form = {}, .functions = {}, .is_required = false});
  for (const std::string& text : {std::string(), std::string("a {\"b\": 1}"), call,
                                  std::string("[1, {}]"), std::string("<|x { |>")}) {
    EXPECT_TRUE(accepts(*free, text)) << text;
  }
  for (const char* text : {"{}", " \n{", "[ {\"name\"", "<|python_tag|> {", "{\"name\": \"g\"}"}) {
    EXPECT_FALSE(accepts(*free, text)) << text;
  }
}

TEST_F(CallRules, OfQwen3Coder) {
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto value = [](const std::string& key, const std::string& text) {
    return "<parameter=" + key + ">\n" + text + "\n</parameter>\n";
  };
  const auto forced = compiled(ToolFormat::kQwen3Coder, {.form = {}, .functions = {}});
  for (const std::string& parameters :
       {std::string(), value("a", "x\n\"<"), value("a", "1") + value("b", R"({"c": [1]})"),
        value("a b", "")}) {
    EXPECT_TRUE(accepts(*forced, call(parameters))) << parameters;
    EXPECT_TRUE(accepts(*forced, "\n" + call(parameters) + "\n" + call("")));
  }
  for (const std::string& text : {std::string("x"), call("x"), call(value("a", "{x")),
                                  call(value("a<", "1")), call("<parameter=a>1</parameter>")}) {
    EXPECT_FALSE(accepts(*forced, text)) << text;
  }
  const auto free =
      compiled(ToolFormat::kQwen3Coder, {.form = {}, .functions = {}, .is_required = false});
  EXPECT_TRUE(accepts(*free, "So <function=g> " + call("") + " done"));
  EXPECT_FALSE(accepts(*free, "<tool_call>\n{"));
}

TEST_F(CallRules, StandBesideJson) {
  const auto answer = std::make_shared<const StructuredOutput>(
      StructuredOutput{.kind = StructureKind::kJsonSchema, .text = R"({"enum":["done"]})"});
  const auto either =
      compiled(ToolFormat::kHermes, {.form = {}, .functions = {}, .or_else = answer});
  EXPECT_TRUE(accepts(*either, "\"done\""));
  EXPECT_TRUE(
      accepts(*either, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\":{}}}\n</tool_call>"));
  EXPECT_FALSE(accepts(*either, "done"));
  EXPECT_FALSE(accepts(*either, "\"done\"<tool_call>"));
}

std::string error_of(StructuredCalls calls) {
  try {
    calls.form = call_form(ToolFormat::kHermes);
    rules_of(std::move(calls));
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
}

TEST(CallErrors, NameTheFunction) {
  const auto of = [](const char* parameters) {
    return error_of({.form = {},
                     .functions = {{.name = "f", .parameters = "{}", .place = "tools[0]"},
                                   {.name = "g", .parameters = parameters, .place = "tools[1]"}}});
  };
  EXPECT_EQ(of(R"({"properties":{"to":{"format":"idn-email"}}})"),
            "tools[1] (g): schema: format at /properties/to of \"idn-email\" is not supported");
  EXPECT_EQ(of(R"({"type":"string"})"),
            "tools[1] (g): schema: type at its root is \"string\"; arguments are an object, so it "
            "must be \"object\"");
  EXPECT_EQ(of(R"({"type":["null","object"]})"), "");
  EXPECT_EQ(of("true"), "");
  EXPECT_NE(of("{").find("tools[1] (g): schema:"), std::string::npos);
  EXPECT_EQ(error_of({}), "calls: there is no function; give one");
}

TEST(CallErrors, OfLenientFunctionsAreListed) {
  CallableFunction function{.name = "f",
                            .parameters = R"({"properties":{"a":{"format":"idn-email"}}})",
                            .is_lenient = true,
                            .place = "tools[4]"};
  const StructureRules made =
      structure_rules(calls_of({.form = call_form(ToolFormat::kHermes), .functions = {function}}));
  ASSERT_EQ(made.ignored.size(), 1u);
  EXPECT_TRUE(made.ignored[0].starts_with("tools[4] (f): ")) << made.ignored[0];
}

}  // namespace
}  // namespace sluice
