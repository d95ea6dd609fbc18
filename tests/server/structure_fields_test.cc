// Every field that asks for structured output, as SamplingParams::structured.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/api/messages/messages_request.h"
#include "server/api/request/request.h"
#include "server/api/responses/response_request.h"

namespace sluice::api {
namespace {

const RequestRules kPlainRules = {.defaults = {}, .vocab_size = 1000};

template <typename Request>
std::shared_ptr<const StructuredOutput> structure_of(const Read<Request>& read) {
  const auto* fault = std::get_if<http::Fault>(&read);
  EXPECT_EQ(fault, nullptr) << fault->message;
  return fault == nullptr ? std::get<Request>(read).params.structured : nullptr;
}

std::shared_ptr<const StructuredOutput> of_chat(const std::string& members) {
  return structure_of(
      read_chat(R"({"messages":[{"role":"user","content":"a"}],)" + members + "}", kPlainRules));
}

StructuredOutput schema(std::string text) {
  return {.kind = StructureKind::kJsonSchema, .text = std::move(text)};
}

struct Case {
  const char* members;
  StructuredOutput structure;
};

TEST(StructureFields, MeanTheSameByAnyName) {
  const StructuredOutput object{.kind = StructureKind::kJsonObject};
  const StructuredOutput choice{.kind = StructureKind::kChoice, .text = {}, .choices = {"a", "b"}};
  const StructuredOutput regex{.kind = StructureKind::kRegex, .text = "a+"};
  const StructuredOutput rules{.kind = StructureKind::kGrammar, .text = "root ::= \"a\""};
  const std::string any_text = R"({"type":"structural_tag","format":{"type":"any_text"}})";
  const StructuredOutput tag{.kind = StructureKind::kStructuralTag, .text = any_text};
  const std::string tag_as_format = R"("response_format":)" + any_text;
  const std::string tag_as_output = R"("structured_outputs":{"structural_tag":)" + any_text + "}";
  // The order of properties is that of the body.
  const std::string text = R"({"properties":{"b":{},"a":{}}})";
  const std::vector<Case> cases = {
      {R"("response_format":{"type":"json_object"})", object},
      {R"("structured_outputs":{"json_object":true})", object},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,
          "schema":{"properties":{"b":{},"a":{}}}}})",
       schema(text)},
      {R"("response_format":{"type":"json_object","schema":{"properties":{"b":{},"a":{}}}})",
       schema(text)},
      {R"("structured_outputs":{"json":{"properties":{"b":{},"a":{}}}})", schema(text)},
      {R"("guided_json":"{\"properties\":{\"b\":{},\"a\":{}}}")", schema(text)},
      {R"("json_schema":{"properties":{"b":{},"a":{}}})", schema(text)},
      {R"("output_config":{"format":{"type":"json_schema",
          "schema":{"properties":{"b":{},"a":{}}}}})",
       schema(text)},
      {R"("structured_outputs":{"choice":["a","b"]})", choice},
      {R"("guided_choice":["a","b"])", choice},
      {R"("structured_outputs":{"regex":"a+"})", regex},
      {R"("guided_regex":"a+")", regex},
      {R"("structured_outputs":{"grammar":"root ::= \"a\""})", rules},
      {R"("guided_grammar":"root ::= \"a\"")", rules},
      {R"("grammar":"root ::= \"a\"")", rules},
      {tag_as_format.c_str(), tag},
      {tag_as_output.c_str(), tag},
      {R"("structured_outputs":{"structural_tag":
          "{\"type\":\"structural_tag\",\"format\":{\"type\":\"any_text\"}}"})",
       tag},
  };
  for (const Case& c : cases) {
    const auto found = of_chat(c.members);
    ASSERT_NE(found, nullptr) << c.members;
    EXPECT_EQ(*found, c.structure) << c.members;
  }
}

TEST(StructureFields, AskForNothingWhereTheyAreNeutral) {
  for (const char* members :
       {R"("response_format":{"type":"text"})", R"("response_format":null)",
        R"("structured_outputs":{})", R"("structured_outputs":{"json":null,"json_object":false})",
        R"("json_schema":{})", R"("grammar":"")", R"("output_config":{"effort":"low"})"}) {
    EXPECT_EQ(of_chat(members), nullptr) << members;
  }
}

// Who gives no text by mistake must not get an answer without a structure.
TEST(StructureFields, AnEmptyTextIsOne) {
  for (const char* members :
       {R"("structured_outputs":{"grammar":""})", R"("structured_outputs":{"regex":""})"}) {
    ASSERT_NE(of_chat(members), nullptr) << members;
    EXPECT_EQ(of_chat(members)->text, "") << members;
  }
}

TEST(StructureFields, RefuseWhatTheyDoNotKnow) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"response_format", R"({"type":"json_schema","json_schema":{}})"},
           {"response_format", R"({"type":"json_schema"})"},
           {"response_format", R"({"type":"xml"})"},
           {"response_format", R"({"type":"json_schema","json_schema":{"schema":3}})"},
           {"response_format", "{}"},
           {"response_format", R"("text")"},
           {"structured_outputs", "true"},
           {"structured_outputs", R"({"json":1})"},
           {"structured_outputs", R"({"choice":[]})"},
           {"structured_outputs", R"({"choice":"a"})"},
           {"structured_outputs", R"({"choice":[1]})"},
           {"structured_outputs", R"({"regex":1})"},
           {"structured_outputs", R"({"structural_tag":[]})"},
           {"structured_outputs", R"({"tag":"x"})"},
           {"structured_outputs", R"({"json":{},"regex":"a"})"},
           {"guided_json", "[]"},
           {"guided_regex", "{}"},
           {"guided_choice", R"("a")"},
           {"guided_grammar", "1"},
           {"json_schema", "1"},
           {"grammar", "[]"},
           {"output_config", R"({"format":{"type":"json_schema"}})"}}) {
    const auto read =
        read_completion(R"({"prompt":"a",")" + name + "\":" + value + "}", kPlainRules);
    const auto* fault = std::get_if<http::Fault>(&read);
    ASSERT_NE(fault, nullptr) << name << " " << value;
    EXPECT_EQ(fault->status, 400);
    EXPECT_TRUE(fault->param.starts_with(name)) << fault->param;
    EXPECT_TRUE(fault->message.starts_with(name)) << fault->message;
  }
}

TEST(StructureFields, ExcludeEachOther) {
  const auto read = read_completion(
      R"({"prompt":"a","guided_regex":"a","response_format":{"type":"json_object"}})", kPlainRules);
  const auto* fault = std::get_if<http::Fault>(&read);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->param, "response_format");
}

TEST(StructureFields, AreThoseOfOtherApisToo) {
  const auto response = structure_of(read_response(
      R"({"input":"a","text":{"format":{"type":"json_schema","name":"n",
          "schema":{"type":"null"}}}})",
      kPlainRules));
  ASSERT_NE(response, nullptr);
  EXPECT_EQ(*response, schema(R"({"type":"null"})"));
  for (const char* member :
       {R"("output_config":{"format":{"type":"json_schema","schema":{"type":"null"}}})",
        R"("output_format":{"type":"json_schema","schema":{"type":"null"}})"}) {
    const auto message = structure_of(
        read_messages(R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],)" +
                          std::string(member) + "}",
                      kPlainRules));
    ASSERT_NE(message, nullptr);
    EXPECT_EQ(*message, schema(R"({"type":"null"})"));
  }
}

}  // namespace
}  // namespace sluice::api
