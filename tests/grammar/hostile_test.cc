// Schemas and expressions that are made to take time or memory end soon, with an error or not.
#include <chrono>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"
#include "grammar/structure_rules.h"
#include "grammar/workshop.h"
#include "sluice/error.h"

namespace sluice {
namespace {

std::string nested(const std::string& open, const std::string& close, int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "{}";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

// A time that a test may ask of a busy machine with sanitizers.
constexpr double kSeconds = 60;

// Reads it, and compiles what is not refused. Prints what takes a second.
void expect_end(const StructuredOutput& structure) {
  static const auto vocabulary = std::make_shared<const Vocabulary>(byte_tokens());
  const auto begin = std::chrono::steady_clock::now();
  std::string result = "compiled";
  try {
    const std::string rules = structure_rules(structure).rules;
    EXPECT_LE(Grammar(rules, vocabulary).num_bytes(), GrammarWorkshop::kMaxGrammarBytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    result = error.message();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::string begins = structure.text.substr(0, 60);
  EXPECT_LT(took.count(), kSeconds) << begins;
  if (took.count() > 1) fmt::print("{:.1f} s: {}: {:.80}\n", took.count(), begins, result);
}

// `body` several times with commas between, @ replaced by the number.
std::string numbered(int count, const std::string& body) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    std::string one = body;
    for (size_t at; (at = one.find('@')) != std::string::npos;)
      one.replace(at, 1, std::to_string(i));
    text += (i > 0 ? "," : "") + one;
  }
  return text;
}

void expect_schema_end(std::string schema) {
  expect_end({.kind = StructureKind::kJsonSchema, .text = std::move(schema)});
}

TEST(Hostile, SchemasEnd) {
  expect_schema_end(nested(R"({"items":)", "}", 60));
  expect_schema_end(nested(R"({"items":)", "}", 5000));
  expect_schema_end(nested(R"({"allOf":[)", "]}", 30));
  expect_schema_end(R"({"type":"array","maxItems":1000000000,"minItems":1000000000})");
  expect_schema_end(R"({"type":"string","maxLength":9999999})");
  expect_schema_end(R"({"type":"string","pattern":"^(a|b)*$","maxLength":8000})");
  expect_schema_end(R"({"type":"string","pattern":"(a*)*(b*)*(a|b|ab)*c{1,1000}"})");
  expect_schema_end(R"({"type":"object","minProperties":1000000,"maxProperties":1000000})");
  std::string names = R"({"type":"object","properties":{)";
  std::string values = R"({"enum":[)";
  for (int i = 0; i < 100'000; ++i) {
    values += fmt::format("{}\"v{}\"", i > 0 ? "," : "", i);
    if (i < 3000) names += fmt::format("{}\"name{}\":{{}}", i > 0 ? "," : "", i);
  }
  expect_schema_end(values + "]}");
  expect_schema_end(names + "}}");
}

// Each of 30 schemas asks twice for the next: 2^30 ways to go through them.
TEST(Hostile, ReferencesEnd) {
  std::string defs = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 30; ++i) {
    defs += fmt::format(
        R"("d{0}":{{"anyOf":[{{"$ref":"#/$defs/d{1}"}},{{"$ref":"#/$defs/d{1}"}}]}},)", i, i + 1);
  }
  expect_schema_end(defs + R"("d30":{"type":"null"}}})");
  std::string all = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 30; ++i) {
    all += fmt::format(
        R"("d{0}":{{"allOf":[{{"$ref":"#/$defs/d{1}"}},{{"$ref":"#/$defs/d{1}"}}]}},)", i, i + 1);
  }
  expect_schema_end(all + R"("d30":{"type":"null"}}})");
}

TEST(Hostile, ObjectsEnd) {
  const auto object = [](const std::string& rest) { return R"({"type":"object",)" + rest + "}"; };
  // Each property may be skipped, so that every rule names all that follow it.
  expect_schema_end(
      object(R"("properties":{)" + numbered(1000, R"("name@":{"type":"string"})") + "}"));
  // And every count of them takes rules of its own.
  expect_schema_end(object(R"("properties":{)" + numbered(300, R"("name@":{"type":"string"})") +
                           R"(},"maxProperties":150,"additionalProperties":false)"));
  // No name matches two patterns: one class of names for each.
  expect_schema_end(
      object(R"("patternProperties":{)" + numbered(200, R"("^x@_":{"type":"null"})") + "}"));
  // Any set of the patterns may match a name: 2^14 classes.
  expect_schema_end(
      object(R"("patternProperties":{)" + numbered(14, R"("x@":{"minimum":@})") + "}"));
  // Each may be there or not: 2^30 ways.
  expect_schema_end(object(R"("dependentRequired":{)" + numbered(30, R"("a@":["b@"])") + "}"));
  // The same, with names that are evaluated or not.
  expect_schema_end(object(R"("dependentSchemas":{)" +
                           numbered(20, R"("a@":{"properties":{"b@":{"type":"null"}}})") +
                           R"(},"unevaluatedProperties":false)"));
}

TEST(Hostile, ChoicesEnd) {
  // 2^40 ways, of which 40 differ: the largest minimum counts.
  expect_schema_end(R"({"allOf":[)" +
                    numbered(40, R"({"anyOf":[{"minimum":@},{"multipleOf":7}]})") + "]}");
  // Exactly one of many properties: each choice excludes all others.
  expect_schema_end(R"({"oneOf":[)" + numbered(40, R"({"required":["a@"]})") + "]}");
  // Told apart by a property, as unions of clients are: 20,000 pairs to compare.
  expect_schema_end(
      R"({"oneOf":[)" +
      numbered(200, R"({"type":"object","required":["k"],"properties":{"k":{"const":@}}})") + "]}");
  // Any set of the schemas may hold.
  expect_schema_end(R"({"anyOf":[)" + numbered(12, R"({"properties":{"a@":{"type":"null"}}})") +
                    R"(],"unevaluatedProperties":false})");
  // A condition for each kind. All but one are empty wherever a kind is chosen.
  expect_schema_end(
      R"({"type":"object","required":["k"],"properties":{"k":{"enum":[)" + numbered(60, "@") +
      R"(]}},"allOf":[)" +
      numbered(60, R"({"if":{"properties":{"k":{"const":@}}},"then":{"required":["p@"]}})") + "]}");
  std::string twice = "{}";
  for (int i = 0; i < 30; ++i) twice = R"({"not":)" + twice + "}";
  // Each is the opposite of the one within.
  expect_schema_end(twice);
  // Its own opposite, one level down.
  expect_schema_end(R"({"$defs":{"a":{"not":{"properties":{"x":{"$ref":"#/$defs/a"}},)"
                    R"("required":["x"]}}},"$ref":"#/$defs/a"})");
  // Its own condition, which has no meaning.
  expect_schema_end(
      R"({"$defs":{"a":{"if":{"$ref":"#/$defs/a"},"then":false}},"$ref":"#/$defs/a"})");
  // Nothing but itself, asked about a value.
  expect_schema_end(
      R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a","enum":[1]})");
  // Nothing but itself, asked about what it evaluates.
  expect_schema_end(R"({"$defs":{"a":{"unevaluatedItems":false,"allOf":[{"$ref":"#/$defs/a"}]}},)"
                    R"("$ref":"#/$defs/a"})");
}

TEST(Hostile, ArraysEnd) {
  // More to count than any answer has.
  expect_schema_end(R"({"type":"array","contains":{"const":1},"minContains":1000000000})");
  // Few to count, but up to many.
  expect_schema_end(
      R"({"type":"array","contains":{"const":1},"minContains":40,"maxContains":44,"maxItems":44})");
  // A rule for each position.
  expect_schema_end(R"({"type":"array","prefixItems":[)" + numbered(3000, R"({"type":"integer"})") +
                    "]}");
  // A rule for each of 2^10 sets.
  expect_schema_end(R"({"type":"array","uniqueItems":true,"items":{"enum":[)" + numbered(10, "@") +
                    "]}}");
  // And 2^1000 of them.
  expect_schema_end(R"({"type":"array","uniqueItems":true,"items":{"enum":[)" +
                    numbered(1000, "@") + "]}}");
  // Repetitions within repetitions, which are one rule each.
  expect_schema_end(
      R"({"type":"array","items":{"type":"string","maxLength":20000},"maxItems":20000})");
}

TEST(Hostile, TextsEnd) {
  // One literal, of which compilation would take minutes.
  expect_schema_end(R"({"const":")" + std::string(1'000'000, 'a') + "\"}");
  // An automaton with a state for each character, which is refused.
  expect_schema_end(R"({"not":{"const":")" + std::string(100'000, 'a') + "\"}}");
  // A name is a literal, but other names have to be told from it.
  expect_schema_end(R"({"type":"object","required":[")" + std::string(100'000, 'a') + "\"]}");
  // A large automaton, and its opposite.
  expect_schema_end(R"({"type":"string","not":{"enum":[)" + numbered(1000, R"("value @")") + "]}}");
  // The same of numbers, one after another.
  expect_schema_end(R"({"type":"integer","not":{"enum":[)" + numbered(300, "@") + "]}}");
  // Each value against a pattern.
  expect_schema_end(R"({"enum":[)" + numbered(20'000, R"("value @")") + R"(],"pattern":"9$"})");
  // Products of products.
  expect_schema_end(R"({"allOf":[)" + numbered(30, R"({"pattern":"a.{@}b"})") + "]}");
  // Much to join, and nothing to find.
  expect_schema_end(R"({"$id":")" + std::string(100'000, '/') + R"(","$ref":"../../../x#a"})");
  // Two large moduli at once.
  expect_schema_end(R"({"multipleOf":0.997,"not":{"multipleOf":0.991},"minimum":-3.5})");
}

TEST(Hostile, ExpressionsEnd) {
  for (const char* regex : {"((a{1,100}){1,100}){1,100}", "(a|aa)+$", "(.*)*x", "[\\s\\S]{4000}",
                            "(a?){500}a{500}", "(x+x+)+y", "(a|b)*a(a|b){16}"}) {
    expect_end({.kind = StructureKind::kRegex, .text = regex});
  }
  expect_end({.kind = StructureKind::kRegex, .text = std::string(100'000, '(')});
  expect_end({.kind = StructureKind::kRegex, .text = std::string(2 << 20, 'a')});
}

}  // namespace
}  // namespace sluice
