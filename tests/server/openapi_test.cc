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
#include "server/api/responses/response_request.h"
#include "tokenizer/chat_messages.h"

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
  if (word == "const") return rule == value;
  if (word == "not") return !fits(rule);
  if (word == "allOf") return std::ranges::all_of(rule, fits);
  if (word == "oneOf") return std::ranges::count_if(rule, fits) == 1;
  if (word == "required") {
    return !value.is_object() || std::ranges::all_of(rule, [&](const Json& name) {
      return value.contains(name.get<std::string>());
    });
  }
  if (word == "properties") {
    if (!value.is_object()) return true;
    for (const auto& [name, member] : value.items()) {
      if (rule.contains(name) && !is_valid(rule.at(name), member)) return false;
    }
    return true;
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
  static const std::set<std::string> kNotNeeded = {"description", "pattern", "propertyNames",
                                                   "additionalProperties", "maxProperties"};
  EXPECT_TRUE(kNotNeeded.contains(word)) << word;
  return true;
}

bool is_valid(const Json& schema, const Json& value) {
  for (const auto& [word, rule] : schema.items()) {
    if (!holds(word, rule, value)) return false;
  }
  return true;
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

// Whether the server reads the body, its messages included, which the renderer checks.
bool is_read(const std::string& schema, const std::string& body) {
  const RequestRules rules{.defaults = {}, .vocab_size = 100};
  const auto is_request = [](const auto& read) {
    return !std::holds_alternative<http::Fault>(read);
  };
  try {
    const Json json = Json::parse(body);
    const Json messages = json.value("messages", Json());
    if (schema.find("Message") != 0 && messages.is_array()) {
      const std::vector<std::string> roles = {"system", "developer", "user", "assistant", "tool"};
      prepare_messages(messages, {.part_roles = roles});
    }
  } catch (const std::exception&) {
    return false;
  }
  if (schema == "CompletionRequest") return is_request(read_completion(body, rules));
  if (schema == "ChatRequest") return is_request(read_chat(body, rules));
  if (schema == "TokenizeRequest") return is_request(read_tokenize(body, rules));
  if (schema == "PinRequest") return is_request(read_pin(body, rules));
  if (schema == "DetokenizeRequest") return is_request(read_detokenize(body, rules));
  if (schema == "MessageRequest") return is_request(read_messages(body, rules));
  if (schema == "MessageCountRequest") return is_request(read_message_count(body, rules));
  return is_request(read_response(body, rules));
}

struct Bodies {
  const char* schema;
  std::string front;  // what is before each of `values`
  std::string back;
  std::vector<std::string> values;
};

std::vector<Bodies> body_table() {
  const std::string user = R"({"role":"user","content":"a"})";
  const std::vector<std::string> chat_messages = {
      user,
      "{}",
      R"({"role":"robot"})",
      R"({"role":"user"})",
      R"({"role":"tool","content":null})",
      R"({"role":"user","content":3})",
      R"({"role":"user","content":[{"type":"text","text":"a"}]})",
      R"({"role":"user","content":[{"type":"text"}]})",
      R"({"role":"user","content":[{"type":"text","text":null}]})",
      R"({"role":"user","content":["a"]})",
      R"({"role":"user","content":[{"type":"image_url"}]})",
      R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]})",
      R"({"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]})",
      R"({"role":"assistant","tool_calls":[{}]})",
      R"({"role":"assistant","tool_calls":{}})",
      R"({"role":"assistant","reasoning_content":1})"};
  const std::vector<std::string> blocks = {
      user,
      R"({"role":"user"})",
      R"({"role":"tool","content":"a"})",
      R"({"role":"user","content":[{"type":"text","text":"a"}]})",
      R"({"role":"user","content":[{"type":"text"}]})",
      R"({"role":"user","content":[{"type":"text","text":null}]})",
      R"({"role":"user","content":[{"type":"thinking","thinking":"a"}]})",
      R"({"role":"assistant","content":[{"type":"thinking","thinking":null}]},)" + user,
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1"}]})",
      R"({"role":"system","content":[{"type":"tool_result","tool_use_id":"1"}]})",
      R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f"}]})",
      R"({"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},)" +
          user,
      R"({"role":"assistant","content":[{"type":"image"}]})"};
  const std::vector<std::string> items = {
      user,
      "{}",
      R"({"type":"message","role":"user","content":"a"})",
      R"({"role":"user"})",
      R"({"role":"tool","content":"a"})",
      R"({"role":"user","content":[{"type":"input_image"}]})",
      R"({"role":"user","content":[{"type":"input_text","text":null}]})",
      R"({"type":"function_call","call_id":"1","name":"f"})",
      R"({"type":"function_call","name":"f"})",
      R"({"type":"function_call_output","call_id":"1","output":"a"})",
      R"({"type":"function_call_output","call_id":"1"})",
      R"({"type":"web_search_call"})"};
  const std::vector<std::string> functions = {
      R"({"function":{"name":"f"}})", R"({"type":"function"})", R"({"function":{"name":""}})",
      R"({"type":"custom","function":{"name":"f"}})",
      R"({"function":{"name":"f","parameters":1}})"};
  const std::vector<std::string> tools = {
      R"({"name":"f","input_schema":{}})", R"({"name":"f"})", R"({"type":"web_search_1"})",
      R"({"type":"custom","name":"f"})", R"({"type":1,"name":"f","input_schema":{}})"};
  const std::vector<std::string> response_tools = {
      R"({"type":"function","name":"f"})",
      R"({"type":"function"})",
      R"({"name":"f"})",
      R"({"type":"web_search"})",
      R"({"type":"namespace","name":"s","tools":[]})",
      R"({"type":"namespace","name":"s"})",
      R"({"type":"function","name":"f","parameters":[]})"};
  const std::string messages = R"("messages":[)" + user + "]";
  return {{"ChatRequest", R"({"messages":[)", "]}", chat_messages},
          {"TokenizeRequest", R"({"messages":[)", "]}", chat_messages},
          {"ChatRequest", "{" + messages + R"(,"tools":[)", "]}", functions},
          {"MessageRequest", R"({"max_tokens":1,"messages":[)", "]}", blocks},
          {"MessageRequest", R"({"max_tokens":1,)" + messages + R"(,"tools":[)", "]}", tools},
          {"ResponseRequest", R"({"input":[)", "]}", items},
          {"ResponseRequest", R"({"input":"a","tools":[)", "]}", response_tools},
          {"MessageCountRequest",
           "{" + messages,
           "}",
           {"", R"(,"max_tokens":1)", R"(,"system":1)", R"(,"system":[{"type":"text","text":"a"}])",
            R"(,"tool_choice":{})", R"(,"tool_choice":{"type":"none"})", R"(,"thinking":{})"}},
          {"MessageRequest", "{" + messages, "}", {"", R"(,"max_tokens":1)"}},
          {"ChatRequest",
           "{" + messages + R"(,"tools":[{"function":{"name":"f"}}],"tool_choice":)",
           "}",
           {"\"auto\"", "\"required\"", "\"any\"", "1", "{}", R"({"type":"function","name":"f"})",
            R"({"type":"function","function":{"name":"f"}})", R"({"type":"function"})",
            R"({"type":"function","function":{}})", R"({"type":"custom","name":"f"})",
            R"({"type":"allowed_tools"})",
            R"({"type":"allowed_tools","mode":"auto","tools":[{"name":"f"}]})",
            R"({"type":"allowed_tools","mode":"none","tools":[{"name":"f"}]})",
            R"({"type":"allowed_tools","mode":"auto","tools":[]})",
            R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{}]}})",
            R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"function":
                {"name":"f"}}]}})"}},
          {"CompletionRequest",
           R"({"prompt":"a","max_tokens":0)",
           "}",
           {"", R"(,"echo":true)", R"(,"echo":false)", R"(,"echo":null)"}},
          {"ChatRequest",
           "{" + messages,
           "}",
           {R"(,"top_logprobs":1)", R"(,"top_logprobs":1,"logprobs":true)",
            R"(,"add_generation_prompt":true,"continue_final_message":true)",
            R"(,"add_generation_prompt":true,"continue_final_message":false)"}},
          {"TokenizeRequest",
           "{",
           "}",
           {"", R"("prompt":"a")", messages, R"("prompt":null)", R"("prompt":"a",)" + messages,
            R"("prompt":"a","messages":null)", R"("prompt":null,)" + messages}},
          {"PinRequest", R"({"name":"a")", "}", {"", R"(,"prompt":"a")"}},
          {"DetokenizeRequest", R"({"tokens":)", "}", {"[0,99]", "[100]", "[-1]", "[]"}}};
}

TEST(OpenApi, BodiesAreAsStrictAsTheServer) {
  const Json schemas =
      openapi_document(kSomeRoutes, {.version = "1", .vocab_size = 100})["components"]["schemas"];
  size_t num_read = 0, num_refused = 0;
  for (const Bodies& row : body_table()) {
    for (const std::string& value : row.values) {
      const std::string body = row.front + value + row.back;
      const bool is_good = is_read(row.schema, body);
      EXPECT_EQ(is_valid(schemas[row.schema], Json::parse(body)), is_good)
          << row.schema << " " << body;
      ++(is_good ? num_read : num_refused);
    }
  }
  EXPECT_GT(num_read, 25U);
  EXPECT_GT(num_refused, 35U);
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
