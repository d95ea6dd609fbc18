// Schemas and expressions that are made to take time or memory end soon, with an error or not.
#include <chrono>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/structure_rules.h"
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

void expect_end(const StructuredOutput& structure) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    structure_rules(structure);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), kSeconds) << structure.text.substr(0, 100);
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
    values += fmt::format("{}\"value {}\"", i > 0 ? "," : "", i);
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
