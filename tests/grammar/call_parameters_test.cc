// Values of calls with tags: what the grammar of a schema takes, and that it is read back.
#include <memory>
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

// The rules of one call of this function that must come.
std::string tagged_rules(const CallableFunction& function) {
  StructuredOutput structure{.kind = StructureKind::kCalls};
  structure.calls = std::make_shared<const StructuredCalls>(
      StructuredCalls{.form = call_form(ToolFormat::kQwen3Coder), .functions = {function}});
  return structure_rules(structure).rules;
}

// Of each value, what stands for it and what does not.
TEST(CallParameters, FollowTheirSchemas) {
  static const auto vocabulary = std::make_shared<const Vocabulary>(byte_tokens());
  const auto takes = [](const std::string& schema, const std::string& text) {
    const CallableFunction function{
        .name = "f",
        .parameters = R"({"properties":{"v":)" + schema +
                      R"(},"required":["v"],)"
                      R"("additionalProperties":false,"$defs":{"n":{"type":"integer"}}})",
        .place = "tools[0]"};
    const Grammar grammar(tagged_rules(function), vocabulary);
    const std::string call = "<tool_call>\n<function=f>\n<parameter=v>\n" + text +
                             "\n</parameter>\n</function>\n</tool_call>";
    EXPECT_FALSE(accepts(grammar, "<tool_call>\n<function=f>\n</function>\n</tool_call>"));
    const bool taken = accepts(grammar, call);
    if (taken) {
      AnswerScanner scanner({.tools = ToolFormat::kQwen3Coder},
                            {{"f", std::make_shared<const nlohmann::ordered_json>(
                                       nlohmann::ordered_json::parse(function.parameters))}});
      const auto events = scanner.push(call);
      EXPECT_EQ(events.size(), 3u) << call;
    }
    return taken;
  };
  const std::pair<const char*, std::vector<std::string>> right[] = {
      {R"({"type":"string"})", {"", "5", "null", "a\nb", "[\"", "</parameter"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {"ab", "\n\n"}},
      {R"({"type":"string","pattern":"^a+$"})", {"aa"}},
      {R"({"type":"string","format":"date"})", {"2026-11-27"}},
      {R"({"enum":["red","a b",5,null,true,[1]]})",
       {"red", "a b", "5", "None", "null", "True", "[1]"}},
      {R"({"type":"integer","minimum":3})", {"3", "12"}},
      {R"({"$ref":"#/$defs/n"})", {"-7"}},
      {R"({"type":"boolean"})", {"true", "False"}},
      {R"({"type":["string","null"]})", {"x", "null", "5", "true"}},
      {R"({"type":["string","number"]})", {"5 x", "5", "null", "{"}},
      {R"({"type":["string","object"]})", {"[", "{\"a\": 1}", " x"}},
      {R"({"type":"array","items":{"type":"string"}})", {"[]", "[\"a\", \"</parameter>\"]"}},
      {R"({"type":"object","properties":{"v":{"type":"string"}}})", {"{\"v\": \"x\"}"}},
      {"{}", {"x", "5", "", "{\"a\": 1}", "[1]"}},
  };
  for (const auto& [schema, texts] : right) {
    for (const std::string& text : texts) EXPECT_TRUE(takes(schema, text)) << schema << text;
  }
  const std::pair<const char*, std::vector<std::string>> wrong[] = {
      {R"({"type":"string"})", {"a</parameter>b"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {"a", "abcd"}},
      {R"({"type":"string","pattern":"^a+$"})", {"ab"}},
      {R"({"enum":["red"]})", {"\"red\"", "blue"}},
      {R"({"type":"integer","minimum":3})", {"2", "3.5", "x"}},
      {R"({"$ref":"#/$defs/n"})", {"x"}},
      {R"({"type":"boolean"})", {"1", "yes"}},
      {R"({"enum":["5",5.5,"null"],"type":["string","number"]})", {"5"}},
      {R"({"type":["string","object"]})", {"{", " {x"}},
      {R"({"type":"array","items":{"type":"string"}})", {"[1]", "x"}},
      {R"({"type":"object","properties":{"v":{"type":"string"}}})", {"{\"v\": 1}"}},
      {"{}", {"{x", "[1"}},
  };
  for (const auto& [schema, texts] : wrong) {
    for (const std::string& text : texts) EXPECT_FALSE(takes(schema, text)) << schema << text;
  }
}

// What cannot be written in this form.
TEST(CallParameters, ThatCannotBeWritten) {
  const auto of = [](const char* name, const std::string& parameters) {
    const CallableFunction function{.name = name, .parameters = parameters, .place = "tools[0]"};
    try {
      tagged_rules(function);
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.message();
    }
  };
  EXPECT_EQ(of("f", "{}"), "");
  EXPECT_NE(of("<f", "{}").find("tools[0] (<f): the model writes names without quotes"),
            std::string::npos);
  EXPECT_EQ(of("f", R"({"properties":{"a>":{}}})"),
            "tools[0] (f): schema: properties at /properties/a> has a name that this model cannot "
            "write in a call");
  EXPECT_EQ(of("f", R"({"properties":{"a":{"type":"string","maxLength":501}}})"),
            "tools[0] (f): schema: maxLength at /properties/a is not supported above 500 in calls "
            "of this model");
  EXPECT_EQ(of("f", R"({"properties":{"a":{"type":"string","maxLength":500}}})"), "");
  EXPECT_NE(of("f", R"({"enum":[{"a":1}]})").find("enum at"), std::string::npos);
}

}  // namespace
}  // namespace sluice
