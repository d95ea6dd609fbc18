// Structural tags of both forms: the texts that they allow, and what is refused.
#include "grammar/tag_rules.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"
#include "grammar/structure_rules.h"
#include "sluice/error.h"

namespace sluice {
namespace {

StructuredOutput tag_of(const std::string& text) {
  return {.kind = StructureKind::kStructuralTag, .text = text};
}

void expect_texts(const std::string& tag, const std::vector<std::string>& right,
                  const std::vector<std::string>& wrong) {
  static const auto vocabulary = std::make_shared<const Vocabulary>(byte_tokens());
  const Grammar grammar(structure_rules(tag_of(tag)).rules, vocabulary);
  for (const std::string& text : right) EXPECT_TRUE(accepts(grammar, text)) << tag << text;
  for (const std::string& text : wrong) EXPECT_FALSE(accepts(grammar, text)) << tag << text;
}

std::string of_format(const std::string& format) {
  return R"({"type":"structural_tag","format":)" + format + "}";
}

TEST(TagRules, OfStructuresAndTriggers) {
  expect_texts(
      R"({"type":"structural_tag","triggers":["<f="],"structures":[
                  {"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"},
                  {"begin":"<f=b>","schema":{"enum":["x"]},"end":"</f>"}]})",
      {"", "free < text <f", "so <f=a>5</f>", "<f=a>5</f><f=b>\"x\"</f> and <f=a>0</f> end"},
      {"<f=", "<f=c>", "<f=a>x</f>", "<f=a>5", "a <f=b>\"y\"</f>"});
}

TEST(TagRules, OfPlainFormats) {
  expect_texts(of_format(R"({"type":"const_string","value":"ab"})"), {"ab"}, {"", "a", "abc"});
  expect_texts(of_format(R"({"type":"json_schema","json_schema":{"type":"boolean"}})"), {"true"},
               {"1", ""});
  expect_texts(of_format(R"({"type":"regex","pattern":"a+"})"), {"a", "aa"}, {"", "b"});
  expect_texts(of_format(R"({"type":"any_text"})"), {"", "x\ny"}, {});
  expect_texts(of_format(R"({"type":"or","elements":[{"type":"const_string","value":"a"},
                            {"type":"regex","pattern":"[0-9]"}]})"),
               {"a", "7"}, {"", "a7"});
  expect_texts(of_format(R"({"type":"sequence","elements":[{"type":"const_string","value":"a"},
                            {"type":"any_text"}]})"),
               {"a", "ab"}, {"", "b"});
}

TEST(TagRules, OfTags) {
  expect_texts(of_format(R"({"type":"tag","begin":"<a>","content":{"type":"any_text"},
                            "end":"</a>"})"),
               {"<a></a>", "<a>x < y</a>"}, {"", "<a>", "<a></a></a>", "<a></a>x"});
  expect_texts(of_format(R"({"type":"tag","begin":"<a>","content":{"type":"any_text"},
                            "end":["</a>","."]})"),
               {"<a>x</a>", "<a>x."}, {"<a>x", "<a>x.</a>"});
  const std::string tags = R"("tags":[{"begin":"<a>","content":{"type":"regex","pattern":"x*"},
      "end":"</a>"},{"type":"tag","begin":"<b>","content":{"type":"const_string","value":"y"},
      "end":""}])";
  expect_texts(of_format(R"({"type":"triggered_tags","triggers":["<a","<b"],)" + tags + "}"),
               {"", "so", "so <a>xx</a> <b>y<a></a>."}, {"<a", "<b>x", "<a>y</a>"});
  expect_texts(of_format(R"({"type":"triggered_tags","triggers":["<a","<b"],
                            "stop_after_first":true,)" +
                         tags + "}"),
               {"", "so <a>xx</a>"}, {"<a></a>.", "<a></a><a></a>"});
  expect_texts(of_format(R"({"type":"tags_with_separator","separator":", ",)" + tags + "}"),
               {"", "<a></a>", "<a></a>, <b>y, <a>x</a>"}, {"x", "<a></a>,", "<a></a><b>y"});
  expect_texts(of_format(R"({"type":"tags_with_separator","separator":"","at_least_one":true,
                            "stop_after_first":true,)" +
                         tags + "}"),
               {"<a></a>", "<b>y"}, {"", "<a></a><b>y"});
}

std::string tag_error(const std::string& tag) {
  try {
    structure_rules(tag_of(tag));
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
}

TEST(TagRules, NameWhatIsRefused) {
  EXPECT_EQ(tag_error(of_format(R"({"type":"sequence","elements":[{"type":"token"}]})")),
            "structural_tag: /format/elements/0/type of \"token\" is not supported");
  EXPECT_EQ(tag_error(of_format(R"({"type":"any_text","excludes":["a"]})")),
            "structural_tag: /format/excludes is not supported");
  EXPECT_EQ(tag_error(of_format(R"({"type":"tag","begin":"a","end":"b","content":{
                                   "type":"json_schema","json_schema":{"format":"regex"}}})")),
            "structural_tag: /format/content/json_schema is refused: schema: format at its root of "
            "\"regex\" is not supported");
  EXPECT_EQ(tag_error(of_format(R"({"type":"triggered_tags","triggers":["<a"],"tags":[
                                   {"begin":"<b","content":{"type":"any_text"},"end":"c"}]})")),
            "structural_tag: /format/tags/0/begin begins with none of the triggers");
  EXPECT_EQ(tag_error(of_format(R"({"type":"triggered_tags","triggers":["<a"],"tags":[],
                                   "at_least_one":true})")),
            "structural_tag: /format/at_least_one is not supported with triggers");
  EXPECT_EQ(tag_error(of_format(R"({"type":"regex","pattern":"(a)\\1"})"))
                .find("structural_tag: /format/pattern is refused: "),
            0U);
  EXPECT_EQ(tag_error(R"({"structures":[],"triggers":["a"]})"),
            "structural_tag: /structures is a list of 0; it must be a list with something in it");
  for (const char* tag :
       {"", "x", "[]", "{}", R"({"format":1})", R"({"format":{}})",
        R"({"format":{"type":"tag","begin":1}})", R"({"triggers":[""],"structures":[{}]})",
        R"({"triggers":["a"],"structures":[1]})",
        R"({"format":{"type":"any_text"},"triggers":["a"]})"}) {
    EXPECT_NE(tag_error(tag).find("structural_tag"), std::string::npos) << tag;
  }
  std::string deep = R"({"type":"any_text"})";
  for (int i = 0; i < 40; ++i) deep = R"({"type":"or","elements":[)" + deep + "]}";
  EXPECT_NE(tag_error(of_format(deep)), "");
}

}  // namespace
}  // namespace sluice
