// The published description of the API against the tables of fields and the check of bodies.
#include "server/api/openapi.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/api/messages/messages_request.h"
#include "server/api/request.h"
#include "server/api/responses/response_fields.h"

namespace sluice::api {
namespace {

const std::vector<RouteName> kSomeRoutes = {
    {"POST", "/v1/completions"}, {"POST", "/v1/chat/completions"}, {"POST", "/tokenize"},
    {"POST", "/detokenize"},     {"GET", "/v1/models/{*}"},        {"GET", "/pins"},
    {"POST", "/pins/{}/{}"},     {"POST", "/v1/messages"}};

Json document() { return openapi_document(kSomeRoutes, "1.2"); }

void collect_references(const Json& value, std::vector<std::string>& references) {
  if (value.is_object() && value.contains("$ref")) references.push_back(value["$ref"]);
  if (!value.is_structured()) return;
  for (const Json& member : value) collect_references(member, references);
}

TEST(OpenApi, HasWhatTheStandardAsksFor) {
  const Json json = document();
  EXPECT_EQ(json["openapi"], "3.1.0");
  EXPECT_EQ(json["info"]["version"], "1.2");
  EXPECT_TRUE(json["info"]["title"].is_string());
  std::vector<std::string> references;
  collect_references(json, references);
  EXPECT_GE(references.size(), kSomeRoutes.size());
  for (const std::string& reference : references) {
    ASSERT_TRUE(reference.starts_with("#/")) << reference;
    EXPECT_TRUE(json.contains(Json::json_pointer(reference.substr(1)))) << reference;
  }
}

TEST(OpenApi, HasEveryRoute) {
  const Json paths = document()["paths"];
  EXPECT_EQ(paths.size(), kSomeRoutes.size());
  for (const auto& [path, operations] : paths.items()) {
    for (const auto& [method, operation] : operations.items()) {
      EXPECT_TRUE(operation["responses"].contains("200")) << path;
      EXPECT_EQ(method == "post", operation.contains("requestBody")) << path;
      EXPECT_EQ(operation["responses"]["default"]["$ref"],
                path == "/v1/messages" ? "#/components/responses/MessagesError"
                                       : "#/components/responses/Error");
      std::set<std::string> names;
      for (const Json& parameter : operation.value("parameters", Json::array())) {
        EXPECT_EQ(parameter["in"], "path");
        EXPECT_EQ(parameter["required"], true);
        names.insert("{" + parameter["name"].get<std::string>() + "}");
      }
      for (const std::string& name : names) EXPECT_NE(path.find(name), path.npos) << path;
      EXPECT_EQ(std::ranges::count(path, '{'), std::ssize(names)) << path;
    }
  }
  EXPECT_TRUE(paths.contains("/pins/{name}/{name2}"));
}

TEST(OpenApi, HasEveryFieldOfEveryTable) {
  const Json json = document();
  const Json& schemas = json["components"]["schemas"];
  const std::pair<const char*, std::span<const FieldFacts>> tables[] = {
      {"CompletionRequest", request_fields(RequestKind::kCompletion)},
      {"ChatRequest", request_fields(RequestKind::kChat)},
      {"TokenizeRequest", request_fields(RequestKind::kTokenize)},
      {"PinRequest", request_fields(RequestKind::kPin)},
      {"DetokenizeRequest", request_fields(RequestKind::kDetokenize)},
      {"MessageRequest", message_fields()},
      {"ResponseRequest", response_fields().facts()}};
  EXPECT_EQ(schemas.size(), std::size(tables));
  for (const auto& [name, fields] : tables) {
    const Json& schema = schemas[name];
    EXPECT_EQ(schema["properties"].size(), fields.size()) << name;
    const Json required = schema.value("required", Json::array());
    for (const FieldFacts& facts : fields) {
      const std::string field(facts.name);
      ASSERT_TRUE(schema["properties"].contains(field)) << field;
      EXPECT_FALSE(schema["properties"][field]["description"].get<std::string>().empty()) << field;
      EXPECT_EQ(std::ranges::count(required, Json(field)), facts.required ? 1 : 0) << field;
    }
  }
  const Json& body = json["paths"]["/tokenize"]["post"]["requestBody"];
  EXPECT_EQ(body["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/TokenizeRequest");
}

TEST(OpenApi, LimitsBiases) {
  const Json json = document();
  const Json& chat = json["components"]["schemas"]["ChatRequest"]["properties"];
  EXPECT_EQ(chat["logit_bias"]["maxProperties"], 1024) << chat["logit_bias"];
  EXPECT_EQ(chat["allowed_token_ids"]["maxItems"], 16'384) << chat["allowed_token_ids"];
}

bool is_type(const Json& type, const Json& value) {
  return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
         (type == "integer" && value.is_number_integer()) ||
         (type == "number" && value.is_number()) || (type == "string" && value.is_string()) ||
         (type == "array" && value.is_array()) || (type == "object" && value.is_object());
}

bool is_valid(const Json& schema, const Json& value);

// Of one word of JSON Schema; those that say nothing of a value that is no object hold.
bool holds(const std::string& word, const Json& rule, const Json& value) {
  const auto fits = [&](const Json& one) { return is_valid(one, value); };
  const auto size = value.is_string() ? value.get_ref<const std::string&>().size() : value.size();
  if (word == "type" && rule.is_string()) return is_type(rule, value);
  if (word == "type") {
    return std::ranges::any_of(rule, [&](const Json& type) { return is_type(type, value); });
  }
  if (word == "enum") return std::ranges::count(rule, value) > 0;
  if (word == "anyOf") return std::ranges::any_of(rule, fits);
  if (word == "minimum") return !value.is_number() || value >= rule;
  if (word == "exclusiveMinimum") return !value.is_number() || value > rule;
  if (word == "maximum") return !value.is_number() || value <= rule;
  if (word == "minLength") return !value.is_string() || size >= rule.get<size_t>();
  if (word == "maxLength") return !value.is_string() || size <= rule.get<size_t>();
  if (word == "minItems") return !value.is_array() || size >= rule.get<size_t>();
  if (word == "maxItems") return !value.is_array() || size <= rule.get<size_t>();
  if (word == "items") {
    return !value.is_array() ||
           std::ranges::all_of(value, [&](const Json& item) { return is_valid(rule, item); });
  }
  EXPECT_TRUE(word == "description" || word == "properties") << word;
  return true;
}

bool is_valid(const Json& schema, const Json& value) {
  for (const auto& [word, rule] : schema.items()) {
    if (!holds(word, rule, value)) return false;
  }
  return true;
}

bool is_let_through(const FieldFacts& facts, const Json& value) {
  try {
    UnknownFields unknown;
    check_field(facts, facts.name, value, {.vocab_size = 1000}, unknown);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

// What the schema of a field refuses the check refuses, too, and the other way round.
TEST(OpenApi, SaysWhatTheCheckLetsThrough) {
  const Json values = Json::parse(
      R"([true, false, 0, 1, -1, 2, 16, 20, 21, 128, 129, 1024, -2, 0.5, 1.5, -0.5, 2.01, 1e30,
          1e300, "", "a", "none", "low", "x y", [], {}, 2147483647, 2147483648, "text", ["a"], [1],
          [""], {"a": 1}, [{}], [[1]], [[]]])");
  size_t num_refused = 0;
  for (const auto fields :
       {request_fields(RequestKind::kCompletion), request_fields(RequestKind::kChat),
        message_fields(), std::span<const FieldFacts>(response_fields().facts())}) {
    for (const FieldFacts& facts : fields) {
      if (facts.type == FieldType::kBiases || !facts.alphabet.empty()) continue;  // patterns
      const Json schema = field_schema(facts);
      EXPECT_EQ(is_valid(schema, nullptr), !facts.required) << facts.name;
      for (const Json& value : values) {
        const bool is_good = is_let_through(facts, value);
        EXPECT_EQ(is_valid(schema, value), is_good)
            << facts.name << " " << value.dump() << " " << schema.dump();
        num_refused += is_good ? 0 : 1;
      }
    }
  }
  EXPECT_GT(num_refused, 1000U);
}

}  // namespace
}  // namespace sluice::api
