// Whole bodies: the published description refuses what the server refuses, and nothing else.
#include <algorithm>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "server/api/messages/messages_request.h"
#include "server/api/openapi.h"
#include "server/api/request/request.h"
#include "server/api/responses/response_fields.h"
#include "server/api/responses/response_request.h"
#include "server/schema_check.h"
#include "tokenizer/chat_messages.h"

namespace sluice::api {
namespace {

const std::vector<DescribedRoute> kBodyRoutes = {
    {"POST", "/v1/completions", {.body = &kCompletionBody}},
    {"POST", "/v1/chat/completions", {.body = &kChatBody}},
    {"POST", "/tokenize", {.body = &kTokenizeBody}},
    {"POST", "/detokenize", {.body = &kDetokenizeBody}},
    {"POST", "/pins", {.body = &kPinBody}},
    {"POST", "/v1/messages", {.body = &kMessageBody}},
    {"POST", "/v1/messages/count_tokens", {.body = &kMessageCountBody}},
    {"POST", "/v1/responses", {.body = &kResponseBody}}};

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
      R"({"role":"user","content":null})",
      R"({"role":"user","content":1})",
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
      R"({"type":"message","role":"user","content":null})",
      R"({"role":"assistant","content":null})",
      R"({"role":"user"})",
      R"({"role":"tool","content":"a"})",
      R"({"role":"user","content":[{"type":"input_image"}]})",
      R"({"role":"user","content":[{"type":"input_text","text":null}]})",
      R"({"type":"function_call","call_id":"1","name":"f"})",
      R"({"type":"function_call","name":"f"})",
      R"({"type":"function_call_output","call_id":"1","output":"a"})",
      R"({"type":"function_call_output","call_id":"1","output":null})",
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
      R"({"type":"namespace","name":"s","tools":[{"type":"","parameters":[]}]})",
      R"({"type":"namespace","name":"s","tools":[{"type":"function","name":"f"}]})",
      R"({"type":"namespace","name":"s","tools":[{"type":"function"}]})",
      R"({"type":"namespace","name":"s","tools":[{"type":"function","name":"f","parameters":[]}]})",
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
          {"ChatRequest",
           "{" + messages,
           "}",
           {R"(,"tool_choice":"required")", R"(,"tool_choice":"auto")", R"(,"tool_choice":null)",
            R"(,"tool_choice":"required","tools":[])", R"(,"tool_choice":"none","tools":[])"}},
          {"ChatRequest",
           "{" + messages + R"(,"tools":[{"function":{"name":"f"}}],"tool_choice":)",
           "}",
           {R"({"type":"function","name":""})", R"({"type":"function","function":{"name":""}})"}},
          {"MessageRequest",
           R"({"max_tokens":1,)" + messages,
           "}",
           {R"(,"tool_choice":{"type":"any"})", R"(,"tool_choice":{"type":"any"},"tools":[])",
            R"(,"tool_choice":{"type":"auto"})", R"(,"tool_choice":{"type":"tool","name":"f"})",
            R"(,"tool_choice":{"type":"any"},"tools":[{"name":"f","input_schema":{}}])"}},
          {"ResponseRequest",
           R"({"input":"a")",
           "}",
           {R"(,"tool_choice":"required")", R"(,"tool_choice":"required","tools":[])",
            R"(,"tool_choice":"none")",
            R"(,"tool_choice":"required","tools":[{"type":"function","name":"f"}])"}},
          {"CompletionRequest",
           R"({"prompt":"a","max_tokens":0)",
           "}",
           {"", R"(,"echo":true)", R"(,"echo":false)", R"(,"echo":null)"}},
          {"CompletionRequest",
           R"({"prompt":"a")",
           "}",
           {R"(,"stream_options":{})", R"(,"stream_options":null)",
            R"(,"stream_options":{"include_usage":false})",
            R"(,"stream_options":{"include_usage":true},"stream":true)"}},
          {"ChatRequest",
           "{" + messages,
           "}",
           {R"(,"stream_options":{"include_usage":true},"stream":false)",
            R"(,"stream_options":{"include_usage":true},"stream":true)"}},
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
            R"("prompt":"a","tools":[{}])", R"("prompt":"a","tools":[{"function":{"name":"f"}}])",
            R"("prompt":"a","messages":null)", R"("prompt":null,)" + messages}},
          {"PinRequest", R"({"name":"a")", "}", {"", R"(,"prompt":"a")"}},
          {"DetokenizeRequest", R"({"tokens":)", "}", {"[0,99]", "[100]", "[-1]", "[]"}}};
}

// Bodies that ask for a structure, in no, one or two ways.
std::vector<Bodies> structure_table() {
  const std::vector<std::string> asks = {
      R"("response_format":{"type":"json_object"})",
      R"("output_config":{"format":{"type":"json_schema","schema":{}}})",
      R"("structured_outputs":{"json":{}})",
      R"("structured_outputs":{"json":true})",
      R"("structured_outputs":{"regex":"a"})",
      R"("structured_outputs":{"choice":["a"]})",
      R"("structured_outputs":{"grammar":"a"})",
      R"("structured_outputs":{"structural_tag":{}})",
      R"("structured_outputs":{"json_object":true})",
      R"("guided_json":false)",
      R"("guided_regex":"")",
      R"("guided_choice":["a"])",
      R"("guided_grammar":"a")",
      R"("json_schema":{"type":"null"})",
      R"("grammar":"a")"};
  const std::vector<std::string> others = {
      R"("response_format":{"type":"text"})",
      R"("response_format":null)",
      R"("response_format":{"type":"json_schema"})",
      R"("response_format":{"type":"json_schema","json_schema":{}})",
      R"("structured_outputs":{"json":null,"json_object":false,"other":false})",
      R"("structured_outputs":{"other":1})",
      R"("response_format":{"type":"json_schema","json_schema":{"schema":null}})",
      R"("response_format":{"type":"json_schema","json_schema":{},"schema":{}})",
      R"("response_format":{"type":"json_schema","json_schema":null,"schema":{}})",
      R"("response_format":{"type":"json_schema","json_schema":{"schema":"{}","strict":1}})",
      R"("response_format":{"type":"json_object","json_schema":{"name":1}})",
      R"("response_format":{"type":"json_object","schema":3})",
      R"("response_format":{"type":"text","triggers":[{}]})",
      R"("response_format":{"type":"text","triggers":["a"],"structures":null,"format":{}})",
      R"("response_format":{"type":"text","structures":{}})",
      R"("response_format":{"type":"text","format":"a"})",
      R"("structured_outputs":{"choice":false})",
      R"("structured_outputs":{"json":false})",
      R"("structured_outputs":{"choice":[]})",
      R"("structured_outputs":{"choice":["a",""]})",
      R"("structured_outputs":{"json":{},"regex":"a"})",
      R"("structured_outputs":{"regex":"a","regexp":null})",
      R"("output_config":{"effort":"low"})",
      R"("json_schema":{})",
      R"("grammar":"")"};
  std::vector<std::string> values;
  const auto name_of = [](const std::string& member) { return member.substr(0, member.find(':')); };
  for (const std::string& one : asks) {
    values.push_back("," + one);
    for (const std::string& other : asks) {
      if (name_of(one) < name_of(other)) values.push_back("," + one + "," + other);
    }
    values.push_back("," + one + R"(,"response_format":{"type":"structural_tag"})");
    if (name_of(one) == R"("response_format")") values.pop_back();
  }
  for (const std::string& other : others) {
    values.push_back("," + other);
    if (name_of(other) != R"("guided_regex")")
      values.push_back("," + other + R"(,"guided_regex":"a")");
  }
  const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
  std::vector<std::string> of_messages = values, of_responses = values;
  const std::string object = R"({"type":"json_object"})";
  of_messages.push_back(R"(,"output_format":)" + object);
  of_messages.push_back(R"(,"output_format":)" + object + R"(,"output_config":{"format":)" +
                        object + "}");
  of_responses.push_back(R"(,"text":{"format":)" + object + "}");
  of_responses.push_back(R"(,"text":{"format":)" + object + R"(},"guided_regex":"a")");
  return {{"CompletionRequest", R"({"prompt":"a")", "}", values},
          {"ChatRequest", "{" + messages, "}", values},
          {"MessageRequest", R"({"max_tokens":1,)" + messages, "}", of_messages},
          {"ResponseRequest", R"({"input":"a")", "}", of_responses}};
}

TEST(OpenApiBodies, AreAsStrictAsTheServer) {
  const Json schemas =
      openapi_document(kBodyRoutes, {.version = "1", .vocab_size = 100})["components"]["schemas"];
  size_t num_read = 0, num_refused = 0;
  std::vector<Bodies> table = body_table();
  std::ranges::move(structure_table(), std::back_inserter(table));
  for (const Bodies& row : table) {
    for (const std::string& value : row.values) {
      const std::string body = row.front + value + row.back;
      const bool is_good = is_read(row.schema, body);
      EXPECT_EQ(is_valid(schemas[row.schema], Json::parse(body)), is_good)
          << row.schema << " " << body;
      ++(is_good ? num_read : num_refused);
    }
  }
  EXPECT_GT(num_read, 125U);
  EXPECT_GT(num_refused, 435U);
}

}  // namespace
}  // namespace sluice::api
