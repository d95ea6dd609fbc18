// The gate: what a schema may not ask for is refused by keyword and place, or reported.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/schema/schema_grammar.h"
#include "sluice/error.h"

namespace sluice {
namespace {

std::string error_of(const std::string& schema) {
  try {
    Refusals refusals(false);
    schema_grammar(schema, refusals);
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << schema;
    return error.message();
  }
}

struct Refused {
  const char* schema;
  const char* error;  // its beginning
};

TEST(SchemaGate, NamesKeywordAndPlace) {
  const std::vector<Refused> cases = {
      {R"({"properties":{"tags":{"uniqueItems":true}}})",
       "schema: uniqueItems at /properties/tags is not supported but for lists of values"},
      {R"({"uniqueItems":true,"items":{"enum":[1,2]},"contains":{"const":1}})",
       "schema: uniqueItems at its root is not"},
      {R"({"items":{"multipleOf":0.1234}})",
       "schema: multipleOf at /items of 0.1234 is not supported"},
      {R"({"multipleOf":1001})", "schema: multipleOf at its root of 1001 is not supported"},
      {R"({"not":{"additionalProperties":{"type":"null"}}})",
       "schema: additionalProperties at its root is not supported below not and if"},
      {R"({"if":{"propertyNames":{"pattern":"^a"}},"then":false})",
       "schema: propertyNames at its root is not supported below not and if"},
      {R"({"items":{"not":{"uniqueItems":true}}})",
       "schema: uniqueItems at /items is not supported"},
      {R"({"contains":{"const":1},"minItems":10000,"minContains":10000})",
       "schema: contains at its root is not supported with, or beside, counts"},
      {R"({"$dynamicRef":"#a"})", "schema: $dynamicRef at its root to #a is not supported"},
      {R"({"$ref":"#/x","x":{"%others":3}})", "schema: %others at /x is not supported"},
      {R"({"$vocabulary":{}})", "schema: $vocabulary at its root is not supported"},
      {R"({"$recursiveRef":"#"})", "schema: $recursiveRef at its root is not supported"},
      {R"({"$ref":"#name"})", "schema: $ref at its root to #name is not supported"},
      {R"({"$ref":"https://example.org/s"})",
       "schema: $ref at its root to https://example.org/s is not supported"},
      {R"({"$ref":"other.json#/a"})", "schema: $ref at its root to other.json#/a is not"},
      {R"({"$ref":"#/$defs/none"})", "schema: $ref at its root names #/$defs/none, which"},
      {R"({"$ref":"#"})", "schema: $ref at its root leads to itself without end"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},
           "b":{"allOf":[{"$ref":"#/$defs/a"}]}}})",
       "schema: $ref at "},
      {R"({"anyOf":[{"type":"null"},{"$ref":"#"}]})", "schema: $ref at "},
      {R"({"oneOf":[{"propertyNames":{"maxLength":3}},{"propertyNames":{"minLength":2}}]})",
       "schema: propertyNames at its root is not supported below not and if, and in a oneOf"},
      {R"({"pattern":"(?=a)b"})", "schema: pattern at its root is not supported: regular"},
      {R"({"patternProperties":{"\\bx":{}}})", "schema: patternProperties at its root is not"},
      {R"({"format":"idn-email"})", "schema: format at its root of \"idn-email\" is not supported"},
      {R"({"items":[{"type":"null"}],"prefixItems":[true]})",
       "schema: items at its root must be a"},
      {R"({"dependencies":{"a":3}})", "schema: /allOf/0/dependentSchemas/a must be an object"},
      {R"({"minimum":1e300})", "schema: minimum at its root has more than 15 digits"},
      {R"({"not":{"const":123456789012345678}})", "schema: a forbidden number of more than 15"},
      {R"({"type":"object","minProperties":3})", "schema: minProperties at its root is not"},
      {R"({"type":"string","maxLength":50000})", "schema: maxLength of 50000 is not supported"},
      // Not schemas at all.
      {"[", "schema: "},
      {"3", "schema: it must be an object, true or false"},
      {R"({"properties":{"a":3}})", "schema: /properties/a must be an object, true or false"},
      {R"({"minLength":-1})", "schema: minLength at its root must be an integer from 0"},
      {R"({"minLength":1.5})", "schema: minLength at its root must be an integer from 0"},
      {R"({"minimum":"1"})", "schema: minimum at its root must be a number"},
      {R"({"exclusiveMinimum":true})", "schema: exclusiveMinimum at its root must be a number"},
      {R"({"multipleOf":0})", "schema: multipleOf at its root must be above 0"},
      {R"({"type":"text"})", "schema: type at its root has \"text\"; give null, boolean"},
      {R"({"type":[]})", "schema: type at its root has no type"},
      {R"({"dependentRequired":{"a":"b"}})",
       "schema: dependentRequired at its root must be a list"},
      {R"({"$id":3})", "schema: $id at its root must be a text"},
      {R"({"type":"%fraction"})", "schema: type at its root has \"%fraction\"; give null"},
      {R"({"required":[1]})", "schema: required at its root must be a list of names"},
      {R"({"required":"a"})", "schema: required at its root must be a list of names"},
      {R"({"enum":[]})", "schema: enum at its root must be a list of values"},
      {R"({"anyOf":[]})", "schema: anyOf at its root must be a list of schemas"},
      {R"({"properties":[]})", "schema: properties at its root must be an object of schemas"},
      // No value at all.
      {"false", "schema: no value satisfies it"},
      {R"({"type":"string","enum":[1]})", "schema: no value satisfies it"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "schema: no value satisfies it"},
      {R"({"type":"object","required":["a"],"properties":{"a":false}})", "schema: no value"},
      {R"({"type":"array","prefixItems":[false],"minItems":1})", "schema: no value satisfies it"},
      {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "schema: no value satisfies it"},
      {R"({"not":{}})", "schema: no value satisfies it"},
      {R"({"oneOf":[true,true]})", "schema: no value satisfies it"},
      {R"({"enum":[{"a":1}],"required":["b"]})", "schema: no value satisfies it"},
      {R"({"type":"array","contains":false})", "schema: no value satisfies it"},
      {R"({"type":"integer","minimum":0.5,"maximum":0.75})", "schema: no value satisfies it"},
      {R"({"type":"string","pattern":"^a$","minLength":2})", "schema: no value satisfies it"},
  };
  for (const Refused& c : cases) {
    EXPECT_TRUE(error_of(c.schema).starts_with(c.error)) << c.schema << "\n" << error_of(c.schema);
  }
}

TEST(SchemaGate, LooksAtWhatReferencesReachAlone) {
  EXPECT_EQ(error_of(R"({"$defs":{"x":{"format":"regex"}},"type":"object"})"), "");
  EXPECT_EQ(error_of(R"({"$defs":{"x":{"format":"regex"}},"items":{"$ref":"#/$defs/x"}})"),
            "schema: format at /$defs/x of \"regex\" is not supported");
  EXPECT_EQ(error_of(R"({"$defs":{"a~/b%":{"type":"null"}},"$ref":"#/$defs/a~0~1b%25"})"), "");
  EXPECT_EQ(error_of(R"({"properties":{"not":{"type":"null"},"if":{}}})"), "");
  EXPECT_EQ(error_of(R"({"then":{"format":"regex"},"else":{"format":"regex"}})"), "");
  EXPECT_EQ(error_of(R"({"format":"int32","minContains":2})"), "");
  EXPECT_EQ(error_of(R"({"const":{"not":1},"default":{"if":1},"x-note":"any"})"), "");
}

TEST(SchemaGate, ReportsWhatALenientCallerLoses) {
  Refusals refusals(true);
  const std::string rules = schema_grammar(
      R"({"type":"array","uniqueItems":true,"items":{"type":"number","multipleOf":0.1234}})",
      refusals);
  EXPECT_EQ(
      refusals.ignored(),
      (std::vector<std::string>{
          "schema: multipleOf at /items of 0.1234 is not supported; give a number whose digits "
          "are at most 1000, as 0.25 and 1000",
          "schema: uniqueItems at its root is not supported but for lists of values, at most 10 "
          "in all"}));
  Refusals none(true);
  EXPECT_EQ(rules, schema_grammar(R"({"type":"array","items":{"type":"number"}})", none));
  EXPECT_TRUE(none.ignored().empty());
}

// Without a part of it, an opposite would forbid what the schema allows.
TEST(SchemaGate, IgnoresAnOppositeAsAWhole) {
  Refusals refusals(true);
  const std::string rules =
      schema_grammar(R"({"not":{"type":"string","format":"regex"}})", refusals);
  EXPECT_EQ(refusals.ignored(),
            (std::vector<std::string>{"schema: format at /not of \"regex\" is not supported"}));
  Refusals none(true);
  EXPECT_EQ(rules, schema_grammar("{}", none));
  Refusals within(true);  // a reference to what is ignored asks for nothing
  schema_grammar(R"({"not":{"format":"regex"},"items":{"$ref":"#/not"}})", within);
  EXPECT_EQ(within.ignored().size(), 1U);
}

}  // namespace
}  // namespace sluice
