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
       "schema: uniqueItems at /properties/tags is not supported"},
      {R"({"items":{"multipleOf":0.5}})", "schema: multipleOf at /items of 0.5 is not supported"},
      {R"({"multipleOf":1001})", "schema: multipleOf at its root of 1001 is not supported"},
      {R"({"not":{"type":"string"}})", "schema: not at its root is not supported"},
      {R"({"if":{},"then":{}})", "schema: if at its root is not supported"},
      {R"({"then":{"minimum":1}})", "schema: then at its root is not supported"},
      {R"({"else":{}})", "schema: else at its root is not supported"},
      {R"({"contains":{}})", "schema: contains at its root is not supported"},
      {R"({"dependentRequired":{"a":["b"]}})", "schema: dependentRequired at its root"},
      {R"({"dependentSchemas":{}})", "schema: dependentSchemas at its root"},
      {R"({"unevaluatedProperties":false})", "schema: unevaluatedProperties at its root"},
      {R"({"unevaluatedItems":false})", "schema: unevaluatedItems at its root"},
      {R"({"$dynamicRef":"#a"})", "schema: $dynamicRef at its root"},
      {R"({"$ref":"https://example.org/s"})",
       "schema: $ref at its root to https://example.org/s is not supported"},
      {R"({"$ref":"other.json#/a"})", "schema: $ref at its root to other.json#/a is not"},
      {R"({"$ref":"#/$defs/none"})", "schema: $ref at its root names #/$defs/none, which"},
      {R"({"$ref":"#"})", "schema: $ref at its root leads to itself without end"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},
           "b":{"allOf":[{"$ref":"#/$defs/a"}]}}})",
       "schema: $ref at "},
      {R"({"anyOf":[{"type":"null"},{"$ref":"#"}]})", "schema: $ref at "},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "schema: oneOf at its root is not"},
      {R"({"oneOf":[{"required":["a"]},{"required":["b"]}]})", "schema: oneOf at its root is not"},
      {R"({"pattern":"(?=a)b"})", "schema: pattern at its root is not supported: regular"},
      {R"({"patternProperties":{"\\bx":{}}})", "schema: patternProperties at its root is not"},
      {R"({"patternProperties":{"^a":{"type":"null"},"b$":{"type":"string"}}})",
       "schema: patternProperties at its root is not supported where a name may match two"},
      {R"({"format":"iri"})", "schema: format at its root of \"iri\" is not supported"},
      {R"({"items":[{"type":"null"}]})", "schema: items at its root with a list is not supported"},
      {R"({"additionalItems":false})", "schema: additionalItems at its root"},
      {R"({"dependencies":{}})", "schema: dependencies at its root"},
      {R"({"properties":{"a":{"$id":"x"}}})", "schema: $id at /properties/a within a schema"},
      {R"({"minimum":1e300})", "schema: minimum at its root has more than 15 digits"},
      {R"({"enum":[{"a":1}],"required":["a"]})", "schema: required at its root beside values"},
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
      {R"({"type":"integer","minimum":0.5,"maximum":0.75})", "schema: no value satisfies it"},
      {R"({"type":"string","pattern":"^a$","minLength":2})", "schema: no value satisfies it"},
  };
  for (const Refused& c : cases) {
    EXPECT_TRUE(error_of(c.schema).starts_with(c.error)) << c.schema << "\n" << error_of(c.schema);
  }
}

TEST(SchemaGate, LooksAtWhatReferencesReachAlone) {
  EXPECT_EQ(error_of(R"({"$defs":{"x":{"not":{}}},"type":"object"})"), "");
  EXPECT_EQ(error_of(R"({"$defs":{"x":{"not":{}}},"items":{"$ref":"#/$defs/x"}})"),
            "schema: not at /$defs/x is not supported");
  EXPECT_EQ(error_of(R"({"$defs":{"a~/b%":{"type":"null"}},"$ref":"#/$defs/a~0~1b%25"})"), "");
  EXPECT_EQ(error_of(R"({"properties":{"not":{"type":"null"},"if":{}}})"), "");
  EXPECT_EQ(error_of(R"({"const":{"not":1},"default":{"if":1},"x-note":"any"})"), "");
}

TEST(SchemaGate, ReportsWhatALenientCallerLoses) {
  Refusals refusals(true);
  const std::string rules = schema_grammar(
      R"({"type":"array","uniqueItems":true,"items":{"type":"number","multipleOf":0.1}})",
      refusals);
  EXPECT_EQ(
      refusals.ignored(),
      (std::vector<std::string>{
          "schema: uniqueItems at its root is not supported",
          "schema: multipleOf at /items of 0.1 is not supported; give an integer up to 1000"}));
  Refusals none(true);
  EXPECT_EQ(rules, schema_grammar(R"({"type":"array","items":{"type":"number"}})", none));
  EXPECT_TRUE(none.ignored().empty());
}

}  // namespace
}  // namespace sluice
