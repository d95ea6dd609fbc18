// A schema for each kind and form of field, then one for each body, then the paths.
#include "server/api/openapi.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/option_check.h"
#include "server/api/request/structure_fields.h"

namespace sluice::api {
namespace {

Json text_schema(const OptionFacts& facts) {
  Json schema = {{"type", "string"}};
  if (facts.field.min_bytes > 0) schema["minLength"] = facts.field.min_bytes;
  if (facts.field.max_bytes < kNoLimit) schema["maxLength"] = facts.field.max_bytes;
  if (!facts.field.alphabet.empty()) {
    schema["pattern"] = fmt::format(
        "^{}[A-Za-z0-9{}]*$", facts.field.no_leading_dot ? "(?![.])" : "", facts.field.alphabet);
  }
  return schema;
}

// What must be above the least number must be so as a float, too, and half of the least float above
// it becomes that number.
Json number_schema(const OptionFacts& facts) {
  Json schema = {{"type", "number"}, {"minimum", facts.number_min}, {"maximum", facts.number_max}};
  if (facts.above_min) {
    const auto least = static_cast<float>(facts.number_min);
    const double next = std::nextafter(least, std::numeric_limits<float>::infinity());
    schema.erase("minimum");
    schema["exclusiveMinimum"] = (static_cast<double>(least) + next) / 2;
  }
  return schema;
}

// Limits that are not set are left out, here and above.
Json list_schema(Json items, size_t min_items, size_t max_items) {
  Json schema = {{"type", "array"}, {"items", std::move(items)}};
  if (min_items > 0) schema["minItems"] = min_items;
  if (max_items < kNoLimit) schema["maxItems"] = max_items;
  return schema;
}

// As many of the shortest as their bytes allow.
size_t most_texts(const OptionFacts& facts) {
  if (facts.field.max_list_bytes == kNoLimit) return facts.field.max_items;
  return std::min(facts.field.max_items,
                  facts.field.max_list_bytes / (facts.field.min_bytes + kTextOverhead));
}

Json token_id_schema(int32_t vocab_size) {
  Json schema = {{"type", "integer"}, {"minimum", 0}};
  if (vocab_size > 0) schema["maximum"] = vocab_size - 1;
  return schema;
}

// A text, ids, or several of either.
Json prompt_schema(const OptionFacts& facts, int32_t vocab_size) {
  const Json text = {{"type", "string"}, {"minLength", 1}};
  const Json ids = list_schema(token_id_schema(vocab_size), 1, kNoLimit);
  return {{"anyOf",
           {text, ids, list_schema(text, 1, facts.field.max_items),
            list_schema(ids, 1, facts.field.max_items)}}};
}

Json object_schema(std::span<const OptionFacts> members, int32_t vocab_size) {
  Json schema = {{"type", "object"}};
  Json required = Json::array();
  for (const OptionFacts& member : members) {
    schema["properties"][std::string(member.name)] = field_schema(member, vocab_size);
    if (member.field.required) required.push_back(member.name);
  }
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

Json biases_schema(const OptionFacts& facts) {
  Json schema = {{"type", "object"},
                 {"propertyNames", {{"pattern", "^(0|[1-9][0-9]{0,9})$"}}},
                 {"additionalProperties", number_schema(facts)}};
  if (facts.field.max_items < kNoLimit) schema["maxProperties"] = facts.field.max_items;
  return schema;
}

Json item_schema(const OptionFacts& facts) {
  return facts.field.schema.empty() ? Json{{"type", "object"}} : Json::parse(facts.field.schema);
}

Json objects_schema(const OptionFacts& facts) {
  return list_schema(item_schema(facts), facts.field.min_items, facts.field.max_items);
}

Json value_schema(const OptionFacts& facts, int32_t vocab_size) {
  switch (facts.kind) {
    case OptionKind::kFlag:
      return {{"type", "boolean"}};
    case OptionKind::kWhole:
    case OptionKind::kTokens:
    case OptionKind::kBytes:
      return {{"type", "integer"}, {"minimum", least_number(facts)}, {"maximum", facts.max}};
    case OptionKind::kNumber:
      return number_schema(facts);
    case OptionKind::kText:
      return text_schema(facts);
    case OptionKind::kTexts:
      return {{"anyOf",
               {text_schema(facts),
                list_schema(text_schema(facts), facts.field.min_items, most_texts(facts))}}};
    case OptionKind::kChoice:
      return {{"enum", std::vector<std::string>(facts.choices.begin(), facts.choices.end())}};
    case OptionKind::kTokenIds:
      return list_schema(token_id_schema(vocab_size), facts.field.min_items, facts.field.max_items);
    case OptionKind::kTokenBiases:
      return biases_schema(facts);
  }
  return Json::object();
}

// Without what `field_schema` adds.
Json form_schema(const OptionFacts& facts, int32_t vocab_size) {
  switch (facts.field.form) {
    case FieldForm::kValue:
      return value_schema(facts, vocab_size);
    case FieldForm::kAny:
      return facts.field.schema.empty() ? Json::object() : Json::parse(facts.field.schema);
    case FieldForm::kPrompt:
      return prompt_schema(facts, vocab_size);
    case FieldForm::kObject:
      return object_schema({facts.field.members, facts.field.num_members}, vocab_size);
    case FieldForm::kTextOrObjects:
      return {{"anyOf", {text_schema(facts), objects_schema(facts)}}};
    case FieldForm::kObjects:
      return objects_schema(facts);
    case FieldForm::kNotDone:
      return {{"enum", Json::parse(facts.field.neutral)}};
    case FieldForm::kHint:
      return Json::object();
  }
  return Json::object();
}

// Null is the same as left out. A field's own schema may have a list of types, with null or without
// it; a schema that says nothing of types allows null already.
void allow_null(Json& schema) {
  if (schema.contains("type") && schema["type"].is_array()) {
    if (std::ranges::find(schema["type"], "null") == schema["type"].end()) {
      schema["type"].push_back("null");
    }
  } else if (schema.contains("type")) {
    schema["type"] = {schema["type"], "null"};
  } else if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
  } else if (schema.contains("enum")) {
    schema["enum"].push_back(nullptr);
  }
}

Json body_schema(const BodyFacts& body, const ServerFacts& server) {
  Json schema = object_schema(body.fields(), server.vocab_size);
  if (!server.model_names.empty()) {
    Json names = server.model_names;
    names.push_back(nullptr);
    schema["properties"]["model"]["enum"] = std::move(names);
  }
  Json rules = Json::parse(body.rules);
  if (Json rule = one_structure_rule(body.fields()); !rule.is_null()) {
    rules.push_back(std::move(rule));
  }
  if (!rules.empty()) schema["allOf"] = std::move(rules);
  return schema;
}

// "/v1/models/{*}" is "/v1/models/{name}"; a second place would be "{name2}".
std::string path_of(const std::string& pattern, std::vector<std::string>& parameters) {
  std::string path;
  for (size_t at = 0; at < pattern.size(); ++at) {
    path += pattern[at];
    if (pattern[at] != '{') continue;
    const size_t number = parameters.size() + 1;
    parameters.push_back(number == 1 ? "name" : fmt::format("name{}", number));
    path += parameters.back() + "}";
    at = pattern.find('}', at);
  }
  return path;
}

Json body_of(const RouteFacts& facts) {
  Json schema = {{"type", "object"}};
  if (facts.body != nullptr) {
    schema = {{"$ref", fmt::format("#/components/schemas/{}", facts.body->name)}};
  }
  return {{"required", true}, {"content", {{"application/json", {{"schema", schema}}}}}};
}

// Of Anthropic's paths, or of all others.
const char* error_reference(std::string_view pattern) {
  return pattern.starts_with("/v1/messages") ? "#/components/responses/MessagesError"
                                             : "#/components/responses/Error";
}

Json operation(const DescribedRoute& route, const std::vector<std::string>& parameters) {
  const RouteFacts& facts = route.facts;
  Json json = {{"summary", facts.summary.empty() ? route.pattern : facts.summary}};
  for (const std::string& name : parameters) {
    json["parameters"].push_back(
        {{"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}});
  }
  if (route.method == "POST") json["requestBody"] = body_of(facts);
  if (!facts.needs_key) json["security"] = Json::array();
  Json answer = {{"description", "the answer"}};
  if (facts.streams) {
    answer["content"] = {{"application/json", Json::object()},
                         {"text/event-stream", Json::object()}};
  }
  json["responses"] = {{"200", std::move(answer)},
                       {"default", {{"$ref", error_reference(route.pattern)}}}};
  return json;
}

Json error_answer_of(Json schema) {
  return {{"description", "an error"},
          {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
}

Json messages_error_answer() {
  const Json text = {{"type", "string"}};
  const Json error = {{"type", "object"},
                      {"properties", {{"type", text}, {"message", text}}},
                      {"required", {"type", "message"}}};
  return error_answer_of(
      {{"type", "object"},
       {"properties", {{"type", {{"const", "error"}}}, {"error", error}, {"request_id", text}}},
       {"required", {"type", "error", "request_id"}}});
}

// Every status but 200 has it.
Json error_answer() {
  const Json text = {{"type", "string"}};
  const Json error = {{"type", "object"},
                      {"properties",
                       {{"message", text},
                        {"type", text},
                        {"param", {{"type", {"string", "null"}}}},
                        {"code", {{"type", {"string", "null"}}}}}},
                      {"required", {"message", "type", "param", "code"}}};
  return error_answer_of(
      {{"type", "object"}, {"properties", {{"error", error}}}, {"required", {"error"}}});
}

}  // namespace

Json field_schema(const OptionFacts& facts, int32_t vocab_size) {
  Json schema = form_schema(facts, vocab_size);
  if (!facts.field.required) allow_null(schema);
  std::string help(help_of(facts));
  if (facts.field.form == FieldForm::kHint) help += "; no effect";
  if (facts.field.form == FieldForm::kNotDone) help = "not supported: " + help;
  if (!default_of(facts).empty()) help += fmt::format(" (default: {})", default_of(facts));
  schema["description"] = std::move(help);
  return schema;
}

Json openapi_document(const std::vector<DescribedRoute>& routes, const ServerFacts& server) {
  Json document = {{"openapi", "3.1.0"},
                   {"info", {{"title", "Sluice"}, {"version", server.version}}},
                   {"security", {{{"key", Json::array()}}, Json::object()}}};
  Json schemas = Json::object();
  for (const DescribedRoute& route : routes) {
    std::vector<std::string> parameters;
    std::string method = route.method;
    std::ranges::transform(method, method.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string path = path_of(route.pattern, parameters);
    document["paths"][path][method] = operation(route, parameters);
    if (const BodyFacts* body = route.facts.body) {
      schemas[std::string(body->name)] = body_schema(*body, server);
    }
  }
  Json& components = document["components"];
  components["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  components["responses"]["Error"] = error_answer();
  components["responses"]["MessagesError"] = messages_error_answer();
  components["schemas"] = std::move(schemas);
  return document;
}

}  // namespace sluice::api
