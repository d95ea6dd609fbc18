// Requests of /v1/responses against the chats that they must equal, and every error by its place.
#include "server/api/responses/response_request.h"

#include <set>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/api/responses/response_fields.h"

namespace sluice::api {
namespace {

const RequestRules kRules = {.defaults = {.temperature = 0.6f, .top_p = 0.95f}, .vocab_size = 1000};

ResponseRequest request(const std::string& members) {
  auto read = read_response("{" + members + "}", kRules);
  if (const auto* fault = std::get_if<http::Fault>(&read)) {
    ADD_FAILURE() << members << ": " << fault->message;
    return {};
  }
  return std::get<ResponseRequest>(std::move(read));
}

Json messages(const std::string& input, const std::string& more = "") {
  return request(R"("input":)" + input + more).conversation.messages;
}

TEST(ResponseInput, TextIsAUser) {
  EXPECT_EQ(messages(R"("Hi")"), Json::parse(R"([{"role":"user","content":"Hi"}])"));
}

TEST(ResponseInput, MessagesHaveTextsOrParts) {
  const Json want = Json::parse(R"([{"role":"user","content":"a\nb"},
                                    {"role":"assistant","content":"c"},
                                    {"role":"user","content":"d"}])");
  EXPECT_EQ(messages(R"([
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},
                                                 {"type":"input_text","text":"b"}]},
      {"type":"message","id":"msg_1","status":"completed","role":"assistant",
       "content":[{"type":"output_text","text":"c","annotations":[]}]},
      {"role":"user","content":"d"}])"),
            want);
}

// Instructions and what developers say before all else are one message; later ones stay there.
TEST(ResponseInput, SystemMessages) {
  const Json first = Json::parse(R"({"role":"system","content":"x\n\ny\n\nz"})");
  const Json user = Json::parse(R"({"role":"user","content":"a"})");
  const Json later = Json::parse(R"({"role":"system","content":"w"})");
  EXPECT_EQ(messages(R"([{"role":"developer","content":"y"},{"role":"system","content":"z"},
                         {"role":"user","content":"a"},{"role":"developer","content":"w"}])",
                     R"(,"instructions":"x")"),
            Json::array({first, user, later}));
  EXPECT_EQ(messages(R"([{"role":"user","content":"a"},{"role":"system","content":"w"}])"),
            Json::array({user, later}));
  EXPECT_EQ(messages(R"("a")", R"(,"instructions":"")"), Json::array({user}));
}

// One turn of the assistant is one message; a call has an object, and its output the call's name.
TEST(ResponseInput, TurnsOfTheAssistant) {
  EXPECT_EQ(messages(R"([
      {"role":"user","content":"a"},
      {"type":"reasoning","id":"rs_1","summary":[],
       "content":[{"type":"reasoning_text","text":"t"},{"type":"reasoning_text","text":"u"}]},
      {"role":"assistant","content":"b"},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"k\": 1}"},
      {"role":"assistant","content":[{"type":"output_text","text":"c"}]},
      {"type":"function_call","call_id":"c2","name":"close","namespace":"agents","arguments":""},
      {"type":"function_call_output","call_id":"c1","output":"one"},
      {"type":"function_call_output","call_id":"c2",
       "output":[{"type":"input_text","text":"two"},{"type":"input_text","text":"2"}]},
      {"type":"function_call_output","call_id":"c3","output":"of a call that is gone"}])"),
            Json::parse(R"([
      {"role":"user","content":"a"},
      {"role":"assistant","content":"b\nc","reasoning_content":"t\nu","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":{"k":1}}},
        {"id":"c2","type":"function","function":{"name":"agents__close","arguments":{}}}]},
      {"role":"tool","tool_call_id":"c1","name":"f","content":"one"},
      {"role":"tool","tool_call_id":"c2","name":"agents__close","content":"two\n2"},
      {"role":"tool","tool_call_id":"c3","content":"of a call that is gone"}])"));
}

// A call without arguments, as it is written by models, clients and routers.
TEST(ResponseInput, CallsWithoutArguments) {
  for (const char* given : {R"(,"arguments":"{}")", R"(,"arguments":"")", R"(,"arguments":null)",
                            R"(,"arguments":{})", ""}) {
    const Json all = messages(std::string(R"([{"type":"function_call","call_id":"c","name":"f")") +
                              given + "}]");
    EXPECT_EQ(all[0]["tool_calls"][0]["function"].dump(), R"({"name":"f","arguments":{}})")
        << given;
  }
}

// Thoughts that are encrypted are left out; others that nothing follows are an answer without text.
TEST(ResponseInput, ThoughtsWithoutAMessage) {
  const Json want = Json::parse(R"([{"role":"user","content":"a"},
      {"role":"assistant","content":"","reasoning_content":"t"},{"role":"user","content":"b"}])");
  EXPECT_EQ(messages(R"([
      {"role":"user","content":"a"},
      {"type":"reasoning","summary":[],"content":null,"encrypted_content":"e"},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
      {"role":"user","content":"b"}])"),
            want);
}

TEST(ResponseTools, FunctionsAndNamespaces) {
  const ResponseRequest read = request(R"("input":"a","tools":[
      {"type":"web_search","external_web_access":false},
      {"type":"function","name":"f","description":"d","strict":true,
       "parameters":{"type":"object","properties":{}}},
      {"type":"namespace","name":"agents","description":"n","tools":[
        {"type":"function","name":"close","parameters":null},{"type":"custom","name":"x"}]},
      {"type":"web_search"},{"type":"a b\n"}])");
  EXPECT_EQ(read.conversation.tools, Json::parse(R"([
      {"type":"function","function":{"name":"f","description":"d",
        "parameters":{"type":"object","properties":{}}}},
      {"type":"function","function":{"name":"agents__close"}}])"));
  EXPECT_EQ(read.skipped_tools, "web_search,custom,a b?");
  ASSERT_EQ(read.facts.tools.size(), 2U);
  EXPECT_EQ(read.facts.tools[0]["strict"], true) << "as the client gave it";
  EXPECT_EQ(read.facts.tools[1]["type"], "namespace");
  ASSERT_EQ(read.facts.in_spaces.size(), 1U);
  EXPECT_EQ(read.facts.in_spaces.at("agents__close").space, "agents");
  EXPECT_EQ(read.facts.in_spaces.at("agents__close").name, "close");
  EXPECT_TRUE(request(R"("input":"a","tools":[{"type":"custom","name":"x"}])")
                  .conversation.tools.is_null());
  EXPECT_TRUE(request(R"("input":"a")").conversation.tools.is_null());
}

// Types come from clients, and go to a line of the log.
TEST(ResponseTools, FewTypesThatAreSkippedAreNamed) {
  std::string tools, named;
  for (int i = 0; i < 500; ++i) {
    const std::string type = "t" + std::to_string(i);
    tools += (i > 0 ? "," : "") + (R"({"type":")" + type + "\"}");
    if (i < 16) named += (i > 0 ? "," : "") + type;
  }
  EXPECT_EQ(request(R"("input":"a","tools":[)" + tools + "]").skipped_tools, named);
}

TEST(ResponseRequest, Members) {
  const ResponseRequest plain = request(R"("input":"a")");
  EXPECT_FALSE(plain.stream);
  EXPECT_FALSE(plain.max_tokens);
  EXPECT_EQ(plain.facts.temperature, 0.6f) << "the model's default";
  EXPECT_TRUE(plain.facts.instructions.is_null());
  const ResponseRequest full = request(
      R"("input":"a","model":"m","stream":true,"temperature":0.25,"top_p":0.5,"seed":3,"stop":"x",
         "max_output_tokens":77,"parallel_tool_calls":false,"tool_choice":"none",
         "reasoning":{"effort":"low","summary":"auto"},"text":{"format":{"type":"text"},
         "verbosity":"low"},"truncation":"auto","store":true,"metadata":{"a":"b"},
         "include":["reasoning.encrypted_content"],"user":"u","prompt_cache_key":"k",
         "service_tier":"auto","instructions":"i","previous_response_id":null,"background":false,
         "client_metadata":{"x":"y"},"stream_options":{"include_obfuscation":false})");
  EXPECT_EQ(full.model, "m");
  EXPECT_TRUE(full.stream);
  EXPECT_EQ(full.params.temperature, 0.25f);
  EXPECT_EQ(full.params.seed, 3);
  EXPECT_EQ(full.params.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(full.tool_choice, ToolChoice::kNone);
  EXPECT_EQ(full.conversation.reasoning_effort, "low");
  EXPECT_EQ(full.unknown.count, 0U) << full.unknown.names.front();
  const ResponseFacts& facts = full.facts;
  EXPECT_EQ(facts.instructions, "i");
  EXPECT_EQ(facts.max_output_tokens, 77);
  EXPECT_EQ(facts.effort, "low");
  EXPECT_EQ(facts.tool_choice, "none");
  EXPECT_FALSE(facts.parallel_tool_calls);
  EXPECT_EQ(facts.top_p, 0.5f);
  EXPECT_EQ(facts.metadata, Json({{"a", "b"}}));
  EXPECT_EQ(facts.user, "u");
  EXPECT_EQ(facts.prompt_cache_key, "k");
  // Agents send a constant: it is cut to the room that is left.
  EXPECT_EQ(std::get<int32_t>(resolve_max_tokens(full, 10, 100)), 77);
  EXPECT_EQ(std::get<int32_t>(resolve_max_tokens(full, 60, 100)), 40);
  const auto over = resolve_max_tokens(full, 100, 100);
  EXPECT_TRUE(std::get<http::Fault>(over).message.starts_with(
      "This model's maximum context length is 100 tokens"));
}

TEST(ResponseRequest, AsksForLogprobs) {
  EXPECT_EQ(request(R"("input":"a")").params.logprobs, std::nullopt);
  EXPECT_EQ(request(R"("input":"a","include":["message.output_text.logprobs"])").params.logprobs,
            0);
  const ResponseRequest top = request(R"("input":"a","top_logprobs":3)");
  EXPECT_EQ(top.params.logprobs, 3);
  EXPECT_EQ(top.facts.top_logprobs, 3);
}

// strict is OpenAI's default here; only a client that says it gets it.
TEST(ResponseRequest, ReadsWhichCallsThereMustBe) {
  const std::string tools =
      R"("input":"a","tools":[{"type":"function","name":"e"},{"type":"namespace","name":"n",)"
      R"("tools":[{"type":"function","name":"f","strict":true}]}])";
  EXPECT_EQ(request(tools).strict_tools, std::vector<std::string>{"n__f"});
  EXPECT_TRUE(request(tools).unknown.names.empty());
  const ResponseRequest named = request(tools + R"(,"tool_choice":{"type":"function","name":"e"})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named.allowed_tools, std::vector<std::string>{"e"});
  EXPECT_EQ(named.facts.tool_choice.dump(), R"({"type":"function","name":"e"})");
  EXPECT_EQ(request(tools + R"(,"tool_choice":"required")").facts.tool_choice, "required");
}

// Members, the `param` of the error, and a part of its text.
TEST(ResponseRequest, Errors) {
  struct Case {
    const char* members;
    const char* param;
    const char* text;
  };
  const std::string deep = R"("input":[{"role":"user","content":[{"type":"input_image"}]}])";
  for (const Case& one :
       {Case{R"("model":"m")", "input", "input is missing; it must be a text or a list of 1 to"},
        Case{R"("input":[])", "input", "input is a list of 0"},
        Case{R"("input":7)", "input", "input is 7"},
        Case{R"("input":["a"])", "input", "input[0] is \"a\""},
        Case{R"("input":[{}])", "input", "input[0].type is missing"},
        Case{R"("input":[{"role":"tool","content":"a"}])", "input", "input[0].role is \"tool\""},
        Case{R"("input":[{"role":"user"}])", "input", "input[0].content is missing"},
        Case{deep.c_str(), "input", "input[0].content[0].type is \"input_image\""},
        Case{R"("input":[{"role":"user","content":[7]}])", "input", "input[0].content[0] is 7"},
        Case{R"("input":[{"role":"user","content":[{"type":"input_text"}]}])", "input",
             "input[0].content[0].text is missing"},
        Case{R"("input":[{"type":"item_reference","id":"x"}])", "input",
             "input[0].type is \"item_reference\""},
        Case{R"("input":[{"type":"reasoning","summary":[]}])", "input", "no message"},
        Case{R"("input":[{"type":"function_call","call_id":"c","name":"f","arguments":7}])",
             "input", "input[0].arguments is 7"},
        Case{R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])", "input",
             "input[0].call_id is missing"},
        Case{R"("input":[{"type":"function_call_output","call_id":"c"}])", "input",
             "input[0].output is missing"},
        Case{R"("input":"a","instructions":7)", "instructions", "instructions is 7"},
        Case{R"("input":"a","max_output_tokens":0)", "max_output_tokens", "0"},
        Case{R"("input":"a","max_tokens":5)", "max_tokens", "give max_output_tokens"},
        Case{R"("input":"a","tool_choice":"required")", "tool_choice", "there are no tools"},
        Case{R"("input":"a","tool_choice":{"type":"function","name":"f"})", "tool_choice",
             "\"f\", which is not among tools"},
        Case{R"("input":"a","tool_choice":{"type":"web_search"})", "tool_choice.type",
             "\"web_search\""},
        Case{R"("input":"a","tools":[{"name":"f"}])", "tools", "tools[0].type is missing"},
        Case{R"("input":"a","tools":[{"type":"function"}])", "tools", "tools[0].name"},
        Case{R"("input":"a","tools":[{"type":"function","name":"f","parameters":[]}])", "tools",
             "tools[0].parameters is a list of 0"},
        Case{R"("input":"a","tools":[{"type":"namespace","name":"n"}])", "tools",
             "tools[0].tools is missing"},
        Case{R"("input":"a","tools":[{"type":"function","name":"f"},
                                        {"type":"function","name":"f"}])",
             "tools", "tools[1].name is \"f\""},
        Case{R"("input":"a","text":{"format":{"type":"json_schema","name":"n"}})", "text.format",
             "text.format.schema is missing"},
        Case{R"("input":"a","reasoning":{"effort":"huge"})", "reasoning.effort", "\"huge\""},
        Case{R"("input":"a","previous_response_id":"r")", "previous_response_id", "never kept"},
        Case{R"("input":"a","conversation":"c")", "conversation", "never kept"},
        Case{R"("input":"a","background":true)", "background", "never kept"},
        Case{R"("input":"a","prompt":{"id":"p"})", "prompt", "stored prompts"},
        Case{R"("input":"a","top_logprobs":21)", "top_logprobs", "an integer from 0 to 20"}}) {
    const auto read = read_response("{" + std::string(one.members) + "}", kRules);
    const auto* fault = std::get_if<http::Fault>(&read);
    ASSERT_NE(fault, nullptr) << "accepted " << one.members;
    EXPECT_EQ(fault->status, 400);
    EXPECT_EQ(fault->param, one.param) << fault->message;
    EXPECT_NE(fault->message.find(one.text), std::string::npos)
        << one.members << ": " << fault->message;
  }
}

TEST(ResponseRequest, HasLimits) {
  std::string tools;
  for (int i = 0; i < 513; ++i) {
    tools += (i > 0 ? "," : "") + (R"({"type":"function","name":"f)" + std::to_string(i) + "\"}");
  }
  const std::string space =
      R"("input":"a","tools":[{"type":"namespace","name":"n","tools":[)" + tools + "]}]";
  EXPECT_TRUE(std::holds_alternative<http::Fault>(read_response("{" + space + "}", kRules)));
  const std::string large =
      R"("input":"a","tools":[{"type":"function","name":"f","description":")" +
      std::string(size_t{5} << 20, 'x') + "\"}]";
  EXPECT_TRUE(std::holds_alternative<http::Fault>(read_response("{" + large + "}", kRules)));
}

// A name twice would show twice in documents, and the second would have no effect.
TEST(ResponseFields, AreNamedOnce) {
  std::set<std::string_view> names;
  for (const OptionFacts& facts : response_fields().facts()) {
    EXPECT_TRUE(names.insert(facts.name).second) << facts.name;
    EXPECT_FALSE(facts.help.empty()) << facts.name;
  }
}

}  // namespace
}  // namespace sluice::api
