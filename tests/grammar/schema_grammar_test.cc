// Schemas become grammars of exactly the documents that they allow.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"
#include "grammar/structure_rules.h"
#include "sluice/error.h"

namespace sluice {
namespace {

class SchemaGrammar : public ::testing::Test {
 protected:
  void SetUp() override { vocabulary_ = std::make_shared<const Vocabulary>(byte_tokens()); }

  std::shared_ptr<const Grammar> compile(const StructuredOutput& structure) {
    return std::make_shared<const Grammar>(structure_rules(structure).rules, vocabulary_);
  }
  void expect(const char* schema, const std::vector<std::string>& valid,
              const std::vector<std::string>& invalid) {
    const auto grammar = compile({.kind = StructureKind::kJsonSchema, .text = schema});
    for (const auto& text : valid) EXPECT_TRUE(accepts(*grammar, text)) << schema << "\n" << text;
    for (const auto& text : invalid)
      EXPECT_FALSE(accepts(*grammar, text)) << schema << "\n" << text;
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
};

// What other readers of schemas let through, and what they wrongly forbid.
TEST_F(SchemaGrammar, EnforcesWhatOthersDrop) {
  expect(R"({"allOf":[{"type":"integer"},{"minimum":5}]})", {"5", "17"}, {"3", "5.5", "\"5\""});
  expect(R"({"type":"string","pattern":"^a","minLength":2})", {R"("ab")"}, {R"("a")", R"("ba")"});
  expect(R"({"enum":["","a"],"maxLength":0})", {R"("")"}, {R"("a")"});
  expect(R"({"oneOf":[{"type":"string"},{"type":"null"}]})", {R"("")", "null"}, {"1"});
  expect(R"({"type":"string","maxLength":2})",
         {R"("\"\n")", R"("\u00e9\ud83d\ude00")", "\"\xF0\x9F\x98\x80\xC3\xA9\"", R"("")"},
         {R"("abc")", "\"\t\"", "\"\n\"", R"("\u00e9\u00e9\u00e9")", R"("\ud83d")"});
  expect(R"({"type":"string","pattern":"^[^a]$"})", {R"("\"")", R"("b")", R"("\u00e9")", R"("\t")"},
         {R"(""")", R"("\u0061")", R"("a")", "\"\t\""});
  expect(R"({"type":"string","pattern":"b"})", {R"("abc")"}, {R"("ac")"});
  expect(R"({"type":"object","patternProperties":{"^x":{"type":"null"}},"required":["y"]})",
         {R"({"y":1})", R"({"y":1,"xa":null})"}, {R"({"xa":null})", R"({"y":1,"xa":1})", "{}"});
  expect(R"({"type":"object","properties":{"a":{"type":"integer"}}})",
         {R"({"a":1,"b":"x"})", R"({"b":[]})", "{}"},
         {R"({"a":"x"})", R"({"b":1,"a":"x"})", R"({"b":1,"\u0061":"x"})"});
  expect(R"({"$ref":"#/$defs/p","minimum":3,"$defs":{"p":{"type":"integer"}}})", {"3"},
         {"2", "\"a\""});
}

TEST_F(SchemaGrammar, KnowsNumbers) {
  expect(R"({"type":"integer"})", {"0", "-1", "907"}, {"-0", "01", "1.0", "1e3", "+1", "--1", ""});
  expect(R"({"type":"number"})", {"0", "-0", "1.50", "1e5", "-2E-07"},
         {"01", ".5", "5.", "1e", "+1"});
  expect(R"({"type":"number","minimum":-1.5,"exclusiveMaximum":2})", {"-1.5", "0", "1.999"},
         {"-1.51", "2", "2.0", "1e0"});
  expect(R"({"type":"integer","multipleOf":7,"minimum":8})", {"14", "7007"}, {"7", "15", "-14"});
  expect(R"({"type":["integer","null"],"maximum":-10})", {"-10", "-999", "null"},
         {"-9", "0", "10"});
}

TEST_F(SchemaGrammar, KnowsLists) {
  expect(R"({"type":"array","items":{"type":"null"},"minItems":1,"maxItems":3})",
         {"[null]", "[ null , null,null ]"}, {"[]", "[null,null,null,null]", "[1]", "[null,]"});
  expect(R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":false})",
         {"[]", "[null]", "[null,true]"}, {"[true]", "[null,true,1]"});
  expect(
      R"({"type":"array","prefixItems":[{"type":"null"}],"items":{"type":"integer"},"minItems":2})",
      {"[null,1]", "[null,1,2]"}, {"[null]", "[]", "[null,null]"});
  expect(R"({"type":"array","maxItems":0})", {"[]", "[  ]"}, {"[1]"});
  expect(R"({"type":"array","maxItems":1000000000})", {"[]", "[1,2]"}, {"1"});
}

TEST_F(SchemaGrammar, KnowsObjects) {
  const char* closed = R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},
    "c":{"type":"null"}},"required":["b"],"additionalProperties":false})";
  expect(closed, {R"({"b":null})", R"({"a":null,"b":null})", R"({"b":null,"c":null})"},
         {"{}", R"({"a":null})", R"({"c":null,"b":null})", R"({"b":null,"d":null})"});
  expect(R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":2})",
         {"{}", R"({"x":1})", R"({"x":1,"y":2})"}, {R"({"x":1,"y":2,"z":3})", R"({"x":null})"});
  expect(
      R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"minProperties":2,"maxProperties":2,
             "additionalProperties":false})",
      {R"({"a":1,"b":1})", R"({"a":1,"c":[]})"}, {"{}", R"({"a":1})", R"({"a":1,"b":1,"c":1})"});
  expect(R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$","maxLength":2}})",
         {R"({"ab":1})", "{}"}, {R"({"abc":1})", R"({"A":1})", R"({"":1})"});
  expect(R"({"type":"object","properties":{"a":false,"b":{"type":"null"}}})",
         {R"({"b":null,"c":1})", "{}"}, {R"({"a":1})"});
  expect(R"({"type":"object","properties":{"é\"":{"type":"null"}},"additionalProperties":false})",
         {R"({"é\"":null})", R"({"\u00e9\"":null})", R"({"\u00E9\"":null})"}, {R"({"e":null})"});
}

TEST_F(SchemaGrammar, KnowsChoicesAndReferences) {
  expect(R"({"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
      "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],
      "additionalProperties":false}},"$ref":"#/$defs/node"})",
         {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"}, {R"({"v":1})"});
  expect(R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false,
      "anyOf":[{"required":["a"]},{"properties":{"a":{"maximum":-1}}}]})",
         {R"({"a":1})", "{}"}, {R"({"a":null})"});
  expect(
      R"({"oneOf":[
      {"type":"object","properties":{"k":{"const":"x"},"v":{"type":"integer"}},"required":["k"]},
      {"type":"object","properties":{"k":{"const":"y"},"w":{"type":"null"}},"required":["k"]}]})",
      {R"({"k":"x","v":1})", R"({"k":"y","w":null})"}, {R"({"k":"x","v":null})", R"({"k":"z"})"});
  expect(R"({"enum":["é",1.5,null,{"a":[1,"x"]}]})",
         {R"("é")", R"("\u00e9")", "1.5", "null", R"({ "a" : [1, "x"] })"}, {"1", R"({"a":[]})"});
  // A branch that contains only itself has no value.
  expect(
      R"({"$defs":{"never":{"type":"object","required":["b"],
      "properties":{"a":{"allOf":[{"$ref":"#/$defs/never"}]},"b":false}}},
      "anyOf":[{"$ref":"#/$defs/never"},{"type":"null"}]})",
      {"null"}, {"{}"});
}

TEST_F(SchemaGrammar, KnowsOpposites) {
  // A number that is no integer is written as a fraction, never as 2.0.
  expect(R"({"not":{"type":["integer","boolean"]}})", {"1.5", "null", R"("a")", "[1]"},
         {"1", "true", "2.0"});
  // What is not listed, of any length.
  expect(R"({"type":"string","not":{"enum":["a","b"]}})", {R"("c")", R"("ab")", R"("")"},
         {R"("a")", R"("b")", "1"});
  // None of several: all of the opposites hold.
  expect(R"({"type":"integer","not":{"anyOf":[{"minimum":10},{"multipleOf":3}]}})",
         {"1", "8", "-1"}, {"0", "9", "10", "12"});
  // A pattern the other way round, beside a length.
  expect(R"({"type":"string","minLength":1,"not":{"pattern":"^_"}})", {R"("a_")"},
         {R"("_a")", R"("")"});
  // One of the names is absent.
  expect(R"({"type":"object","not":{"required":["a","b"]}})", {"{}", R"({"a":1,"c":2})"},
         {R"({"a":1,"b":2})"});
  // A value that is not this object: without the name, with another value, or with more names.
  expect(R"({"type":"object","properties":{"k":{"not":{"const":{"x":[1]}}}},"required":["k"]})",
         {R"({"k":1})", R"({"k":{}})", R"({"k":{"x":[2]}})", R"({"k":{"x":[1],"y":1}})"},
         {R"({"k":{"x":[1]}})"});
  // Some item is no text, so there is one.
  expect(R"({"type":"array","not":{"items":{"type":"string"}}})", {"[1]", R"(["a",1])"},
         {"[]", R"(["a"])"});
  // The same by types alone.
  expect(R"({"type":"number","not":{"type":"integer"}})", {"1.5", "-0.25"}, {"1", "1.0", "0"});
  // One value is left.
  expect(R"({"type":"boolean","not":{"const":true}})", {"false"}, {"true"});
  // Decimals as they are written, not as doubles divide.
  expect(R"({"type":"number","multipleOf":0.25})", {"0.5", "1", "-1.75"}, {"0.3", "0.125"});
}

TEST_F(SchemaGrammar, KnowsConditions) {
  // Fields that depend on a kind, as forms have them.
  expect(R"({"type":"object","properties":{"kind":{"enum":["a","b","c"]},"x":{"type":"integer"}},
      "required":["kind"],"additionalProperties":false,"allOf":[
      {"if":{"properties":{"kind":{"const":"a"}}},"then":{"required":["x"]}},
      {"if":{"properties":{"kind":{"const":"b"}}},"then":{"properties":{"x":false}}}]})",
         {R"({"kind":"a","x":1})", R"({"kind":"b"})", R"({"kind":"c"})", R"({"kind":"c","x":2})"},
         {R"({"kind":"a"})", R"({"kind":"b","x":1})"});
  // Types that the condition is not about go to the other branch.
  expect(R"({"if":{"type":"integer"},"then":{"minimum":3},"else":{"type":"string"}})",
         {"3", R"("a")"}, {"2", "null", "2.5"});
  // A name that asks for another one.
  expect(R"({"type":"object","properties":{"card":{"type":"null"},"address":{"type":"null"}},
      "additionalProperties":false,"dependentRequired":{"card":["address"]}})",
         {"{}", R"({"address":null})", R"({"card":null,"address":null})"}, {R"({"card":null})"});
  // The same as drafts before 2019-09 wrote it.
  expect(R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false,
      "dependencies":{"a":{"properties":{"a":{"minimum":5}}}}})",
         {"{}", R"({"a":5})"}, {R"({"a":4})"});
  // Overlapping choices: what both allow is excluded.
  expect(R"({"oneOf":[{"type":"integer"},{"minimum":2}]})", {"1", "2.5", "null"}, {"3", "1.5"});
  // Objects with exactly one of two names.
  expect(R"({"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]})",
         {R"({"a":1})", R"({"b":1,"c":1})"}, {R"({"a":1,"b":1})", "{}"});
  // Names by what they are not.
  expect(R"({"type":"object","propertyNames":{"not":{"enum":["a"]}}})", {R"({"b":1})", "{}"},
         {R"({"a":1})"});
}

TEST_F(SchemaGrammar, KnowsWhatIsUnevaluated) {
  // Names of one choice, of the other, or of both where both hold.
  expect(R"({"type":"object","allOf":[{"properties":{"a":{"type":"null"}}}],
      "anyOf":[{"properties":{"b":{"type":"null"}},"required":["b"]},
      {"properties":{"c":{"type":"null"}}}],
      "unevaluatedProperties":false})",
         {R"({"a":null})", R"({"a":null,"b":null})", R"({"c":null})", R"({"b":null,"c":null})"},
         {R"({"d":1})", R"({"b":1})"});
  // Items that contains counts are evaluated, wherever they are.
  expect(R"({"type":"array","prefixItems":[{"type":"null"}],"contains":{"type":"integer"},
      "unevaluatedItems":{"type":"string"}})",
         {R"([null,1,"a"])", "[null,2]"}, {R"([null,"a"])", "[null,1,true]"});
  // A name that matches two patterns satisfies both.
  expect(R"({"type":"object","patternProperties":{"^a":{"type":"integer"},"b$":{"minimum":3}},
      "additionalProperties":false})",
         {R"({"ab":3})", R"({"a":1,"b":null})"}, {R"({"ab":1})", R"({"c":1})"});
}

TEST_F(SchemaGrammar, CountsItems) {
  // At least one, wherever it is.
  expect(R"({"type":"array","contains":{"const":1}})", {"[1]", "[2,1]", "[1,2,1]"}, {"[]", "[2]"});
  // At most one, so that all others are told from it.
  expect(R"({"type":"array","contains":{"const":1},"minContains":0,"maxContains":1,"maxItems":3})",
         {"[]", "[2]", "[1,2]", "[2,2,1]"}, {"[1,1]", "[2,2,2,2]"});
  // Every order of different values.
  expect(R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":1})",
         {R"(["a"])", R"(["c","a"])", R"(["b","a","c"])"},
         {"[]", R"(["a","a"])", R"(["a","b","a"])"});
  // A list of at most one item is always unique.
  expect(R"({"type":"array","items":{"type":"string"},"maxItems":1,"uniqueItems":true})",
         {"[]", R"(["x"])"}, {R"(["x","y"])"});
  // A tuple as drafts before 2020-12 wrote it.
  expect(
      R"({"type":"array","items":[{"type":"integer"},{"type":"string"}],"additionalItems":false})",
      {"[]", R"([1,"a"])"}, {R"(["a"])", R"([1,"a",2])"});
}

TEST_F(SchemaGrammar, FollowsNames) {
  // The same anchor in two parts with URIs of their own: the nearest one counts.
  expect(R"({"$id":"https://example.org/root","properties":{"a":{"$ref":"item"},"b":{"$ref":"#n"}},
      "$defs":{"x":{"$id":"item","type":"null","$defs":{"y":{"$anchor":"n","type":"string"}}},
      "y":{"$anchor":"n","type":"integer"}},"type":"object"})",
         {R"({"a":null,"b":1})"}, {R"({"a":1})", R"({"b":"x"})"});
  // One anchor of the name: as a reference.
  expect(R"({"$dynamicAnchor":"node","type":"array","items":{"$dynamicRef":"#node"}})",
         {"[[],[[]]]"}, {"[1]"});
}

TEST_F(SchemaGrammar, LimitsBlanks) {
  expect(R"({"type":"object"})", {"{        }", "{\n\t\"a\" :  [ ]\r\n}"},
         {"{         }", " {}", "{} ", "{\"a\":         1}"});
}

TEST_F(SchemaGrammar, KnowsOtherKinds) {
  const auto regex = compile({.kind = StructureKind::kRegex, .text = R"(^[A-Z]{2}-\d+$)"});
  EXPECT_TRUE(accepts(*regex, "AB-12"));
  EXPECT_FALSE(accepts(*regex, "AB-"));
  const auto choice =
      compile({.kind = StructureKind::kChoice, .text = {}, .choices = {"yes", "no", "\"é"}});
  EXPECT_TRUE(accepts(*choice, "yes"));
  EXPECT_TRUE(accepts(*choice, "\"é"));
  EXPECT_FALSE(accepts(*choice, "n"));
  const auto rules =
      compile({.kind = StructureKind::kGrammar, .text = "root ::= [a-b]{2} x\nx ::= \"!\"?\n"});
  EXPECT_TRUE(accepts(*rules, "ab!"));
  EXPECT_FALSE(accepts(*rules, "abc"));
  EXPECT_TRUE(accepts(*compile({.kind = StructureKind::kJsonObject}), R"({"a":{"b":[1]}})"));
  for (const char* bad : {"", "root ::= ", "root ::= missing", "x ::= \"a\"", "root ::= \"a"}) {
    EXPECT_THROW(compile({.kind = StructureKind::kGrammar, .text = bad}), Error) << bad;
  }
}

// Alternatives that begin alike share states, but what repeats in one is no part of another.
TEST_F(SchemaGrammar, KeepsAlternativesApart) {
  const auto expect_rules = [&](const char* rules, const std::vector<std::string>& valid,
                                const std::vector<std::string>& invalid) {
    const auto grammar = compile({.kind = StructureKind::kGrammar, .text = rules});
    for (const auto& text : valid) EXPECT_TRUE(accepts(*grammar, text)) << rules << "\n" << text;
    for (const auto& text : invalid) EXPECT_FALSE(accepts(*grammar, text)) << rules << "\n" << text;
  };
  expect_rules(R"(root ::= "abc" "d" | "abc"* "e" | "abx" | "ab" | "")",
               {"abcd", "e", "abcabce", "abx", "ab", ""}, {"abcabcd", "abc", "abxe", "d", "abe"});
  expect_rules(R"(root ::= ("ab" | "ac")+ "!" | "ab?" | [a] "d"? | "abab.")",
               {"abacab!", "ab?", "a", "ad", "abab."}, {"abab", "!", "ac?", "ad!", "acab."});
  expect_rules(R"(root ::= ("x"* "y"?)* "xz" | "xx"{2,3} | "x"? "w")",
               {"xz", "xyxxz", "xxxx", "xxxxxx", "w", "xw"}, {"xx", "xxxxx", "xxxxw", "xxw", "z"});
  expect_rules("root ::= list | \"[]\"\nlist ::= \"[\" (list \",\")* \"]\" | \"[\" list \"]\"\n",
               {"[]", "[[],[[]],]", "[[[]]]"}, {"[", "[[]", "[,]", "[[],[]]"});
}

TEST_F(SchemaGrammar, KnowsNamesThatBeginAlike) {
  expect(R"({"properties":{"ab":{"type":"null"},"abc":{"type":"null"},"é":{"type":"null"},
             "":{"type":"null"}},"type":"object","additionalProperties":{"type":"integer"}})",
         {R"({"ab":null,"abc":null,"é":null,"":null})", R"({"a":1,"abd":2,"abcd":3,"éa":4})",
          R"({"\u00e9":null,"a\u00e9":1,"\n":2,"\u00c9":3})", R"({"Ab":1,"ac":1,"b":1})"},
         {R"({"ab":1})", R"({"abc":1})", R"({"é":1})", R"({"":1})", R"({"\u00e9":1})",
          R"({"a":null})", R"({"abd":null})", R"({"\u0061b":1})"});
}

// More values than ways that a text may go on in: texts that begin alike are one.
TEST_F(SchemaGrammar, KnowsThousandsOfValues) {
  std::string schema = R"({"enum":[)";
  for (int i = 0; i < 6000; ++i) schema += fmt::format(R"("v{}",)", i);
  expect((schema + "0]}").c_str(), {R"("v0")", R"("v5999")", R"("v12")", "0"},
         {R"("v6000")", R"("v")", R"("v012")"});
}

}  // namespace
}  // namespace sluice
