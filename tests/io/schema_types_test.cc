// Types that schemas plainly allow, and texts as values of them.
#include "io/schema_types.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

unsigned types_of_schema(const char* schema, const char* definitions = "{}") {
  const Json parameters = {{"properties", {{"a", Json::parse(schema)}}},
                           {"$defs", Json::parse(definitions)}};
  return property_types(parameters, "a");
}

TEST(SchemaTypes, OfProperties) {
  EXPECT_EQ(types_of_schema(R"({"type":"string"})"), kPlainString);
  EXPECT_EQ(types_of_schema(R"({"type":["integer","null"]})"), kPlainNumber | kPlainNull);
  EXPECT_EQ(types_of_schema(R"({"enum":[1,"a",{}]})"), kPlainNumber | kPlainString | kPlainObject);
  EXPECT_EQ(types_of_schema(R"({"const":[1]})"), kPlainArray);
  EXPECT_EQ(types_of_schema(R"({"anyOf":[{"type":"string"},{"type":"null"}]})"),
            kPlainString | kPlainNull);
  EXPECT_EQ(types_of_schema(R"({"allOf":[{"type":["string","null"]},{"type":"string"}]})"),
            kPlainString);
  EXPECT_EQ(types_of_schema(R"({"$ref":"#/$defs/b"})", R"({"b":{"type":"boolean"}})"),
            kPlainBoolean);
  EXPECT_EQ(property_types(Json::object(), "a"), kPlainAny);
}

// Whatever stands there, the answer is quick, and no type is missing that may be meant.
TEST(SchemaTypes, OfWhatIsNoSchema) {
  for (const char* schema :
       {"true", "7", "{}", R"({"type":7})", R"({"type":"x"})", R"({"enum":7})", R"({"anyOf":{}})",
        R"({"anyOf":[]})", R"({"$ref":7})", R"({"$ref":"x"})", R"({"$ref":"#/none"})",
        R"({"$ref":"#~9"})", R"({"$ref":"#/properties/a"})",
        R"({"anyOf":[{"$ref":"#/properties/a"},{"$ref":"#/properties/a"},
                     {"$ref":"#/properties/a"},{"$ref":"#/properties/a"}]})"}) {
    EXPECT_EQ(types_of_schema(schema), kPlainAny) << schema;
  }
  for (const char* parameters : {"null", "[]", R"({"properties":[]})"}) {
    EXPECT_EQ(property_types(Json::parse(parameters), "a"), kPlainAny);
  }
}

TEST(SchemaTypes, OfPlainTexts) {
  EXPECT_EQ(json_of_plain(" 5 ", kPlainNumber), "5");
  EXPECT_EQ(json_of_plain(" 5 ", kPlainString), "\" 5 \"");
  EXPECT_EQ(json_of_plain("5", kPlainString | kPlainNull), "\"5\"");
  EXPECT_EQ(json_of_plain("None", kPlainString | kPlainNull), "null");
  EXPECT_EQ(json_of_plain("True", kPlainAny), "true");
  EXPECT_EQ(json_of_plain("[\"a\nb\"]", kPlainArray), R"(["a\u000ab"])");
  EXPECT_EQ(json_of_plain("[1]", kPlainObject), "\"[1]\"");
  EXPECT_EQ(json_of_plain("\"a\"", kPlainAny), R"("\"a\"")");
  EXPECT_EQ(json_of_plain("", kPlainNumber), "\"\"");
  EXPECT_EQ(json_of_plain("\xff", kPlainString), "");
}

}  // namespace
}  // namespace sluice
