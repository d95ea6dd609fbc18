// The published description of the API against the tables of fields and the check of bodies.
#include "server/api/openapi.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/api/messages/messages_request.h"
#include "server/api/request/request.h"
#include "server/api/responses/response_fields.h"
#include "server/schema_check.h"

namespace sluice::api {
namespace {

const std::vector<DescribedRoute> kSomeRoutes = {
    {"POST", "/v1/completions", {.body = &kCompletionBody}},
    {"POST", "/v1/chat/completions", {.body = &kChatBody}},
    {"POST", "/tokenize", {.body = &kTokenizeBody}},
    {"POST", "/detokenize", {.body = &kDetokenizeBody}},
    {"GET", "/v1/models/{*}"},
    {"GET", "/pins"},
    {"POST", "/pins/{}/{}", {.body = &kPinBody}},
    {"POST", "/v1/messages", {.body = &kMessageBody}},
    {"POST", "/v1/messages/count_tokens", {.body = &kMessageCountBody}},
    {"POST", "/v1/responses", {.body = &kResponseBody}}};

Json document() { return openapi_document(kSomeRoutes, {.version = "1.2"}); }

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
                path.starts_with("/v1/messages") ? "#/components/responses/MessagesError"
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
  const std::pair<const char*, std::span<const OptionFacts>> tables[] = {
      {"CompletionRequest", request_fields(RequestKind::kCompletion)},
      {"ChatRequest", request_fields(RequestKind::kChat)},
      {"TokenizeRequest", request_fields(RequestKind::kTokenize)},
      {"PinRequest", request_fields(RequestKind::kPin)},
      {"DetokenizeRequest", request_fields(RequestKind::kDetokenize)},
      {"MessageRequest", message_fields()},
      {"MessageCountRequest", message_count_fields()},
      {"ResponseRequest", response_fields().facts()}};
  EXPECT_EQ(schemas.size(), std::size(tables));
  for (const auto& [name, fields] : tables) {
    const Json& schema = schemas[name];
    EXPECT_EQ(schema["properties"].size(), fields.size()) << name;
    const Json required = schema.value("required", Json::array());
    for (const OptionFacts& facts : fields) {
      const std::string field(facts.name);
      ASSERT_TRUE(schema["properties"].contains(field)) << field;
      EXPECT_FALSE(schema["properties"][field]["description"].get<std::string>().empty()) << field;
      EXPECT_EQ(std::ranges::count(required, Json(field)), facts.field.required ? 1 : 0) << field;
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

// Calls `see` with each rule of types in it.
void for_each_type(const Json& schema, const std::function<void(const Json&)>& see) {
  if (!schema.is_structured()) return;
  for (const auto& [name, rule] : schema.items()) {
    if (name != "properties") {
      if (schema.is_object() && name == "type") see(rule);
      for_each_type(rule, see);
      continue;
    }
    for (const auto& [property, of_property] : rule.items()) for_each_type(of_property, see);
  }
}

// A list within a list is no type: programs that read the description stop at it.
TEST(OpenApi, TypesAreNamesOrListsOfNames) {
  size_t num_types = 0;
  for_each_type(document()["components"]["schemas"], [&](const Json& type) {
    const bool is_list = type.is_array() && std::ranges::all_of(type, [](const Json& name) {
                           return name.is_string();
                         });
    EXPECT_TRUE(type.is_string() || is_list) << type;
    ++num_types;
  });
  EXPECT_GT(num_types, 100U);
}

bool is_let_through(const OptionFacts& facts, const Json& value) {
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
          5e-324, 1e-45, 1e300, "", "a", "none", "low", "x y", [], {}, 2147483647, 2147483648,
          "text", ["a"], [1], [""], {"a": 1}, [{}], [[1]], [[]]])");
  size_t num_refused = 0;
  for (const auto fields :
       {request_fields(RequestKind::kCompletion), request_fields(RequestKind::kChat),
        message_fields(), std::span<const OptionFacts>(response_fields().facts())}) {
    for (const OptionFacts& facts : fields) {
      if (facts.kind == OptionKind::kTokenBiases || !facts.field.alphabet.empty())
        continue;  // patterns
      const std::span members(facts.field.members, facts.field.num_members);
      const auto is_required = [](const OptionFacts& member) { return member.field.required; };
      if (!facts.field.schema.empty() || std::ranges::any_of(members, is_required)) continue;
      const Json schema = field_schema(facts);
      EXPECT_EQ(is_valid(schema, nullptr), !facts.field.required) << facts.name;
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

TEST(OpenApi, NamesTheModelsAndTheVocabulary) {
  const Json json =
      openapi_document(kSomeRoutes, {.version = "1", .model_names = {"a", "b"}, .vocab_size = 100});
  const Json& chat = json["components"]["schemas"]["ChatRequest"]["properties"];
  EXPECT_EQ(chat["model"]["enum"], (Json{"a", "b", nullptr}));
  EXPECT_EQ(chat["stop_token_ids"]["items"]["maximum"], 99);
}

}  // namespace
}  // namespace sluice::api
