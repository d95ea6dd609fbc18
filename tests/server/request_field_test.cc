// Every field of every route at and past its limits. The limits are written out here, not taken
// from the tables under test, and a field without a row fails the test.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/api/request/request.h"

namespace sluice::api {
namespace {

constexpr int32_t kVocab = 100;

struct FieldCase {
  std::string name;
  std::vector<std::string> good;  // JSON
  std::vector<std::string> bad;
  std::string others = {};  // further members: R"("logprobs":true)"
};

std::string list_of(const std::string& item, size_t count) {
  std::string list = "[";
  for (size_t i = 0; i < count; ++i) list += (i > 0 ? "," : "") + item;
  return list + "]";
}

std::string quoted_text(size_t num_bytes) { return "\"" + std::string(num_bytes, 'x') + "\""; }

std::string tool(const std::string& members) {
  return R"([{"type":"function","function":{)" + members + "}}]";
}

std::vector<FieldCase> sampling_cases() {
  return {
      {"model", {"\"m\"", "\"\""}, {"1", "[]", "{}", "true"}},
      {"temperature",
       {"0", "0.0", "1", "2.5", "3.4e38"},
       {"-0.1", "-1", "1e308", "3.5e38", "\"1\"", "true", "[]"}},
      {"top_p", {"1", "0.5", "1e-30"}, {"0", "0.0", "1e-300", "1.1", "-1", "\"1\"", "false"}},
      {"top_k",
       {"-1", "0", "1", "2147483647"},
       {"-2", "2147483648", "9223372036854775808", "3.0", "3.9", "1e308", "\"1\"", "true"}},
      {"min_p", {"0", "1", "0.05"}, {"-0.01", "1.01", "1e308", "\"0\"", "true"}},
      {"repetition_penalty", {"1", "1e-30", "5"}, {"0", "1e-300", "-1", "1e308", "\"1\""}},
      {"frequency_penalty", {"-2", "2", "0"}, {"-2.01", "2.01", "\"1\"", "true"}},
      {"presence_penalty", {"-2", "2", "0"}, {"-2.01", "2.01", "\"1\"", "true"}},
      {"logit_bias",
       {"{}", R"({"0":-100,"99":100})", R"({"7":0.5})"},
       {R"({"100":0})", R"({"-1":0})", R"({"07":0})", R"({"":0})", R"({"x":0})", R"({"7.0":0})",
        R"({"99999999999999999999":0})", R"({"7":101})", R"({"7":-101})", R"({"7":null})",
        R"({"7":"1"})", "[]", "1"}},
      {"allowed_token_ids",
       {"[0]", "[99,1]", list_of("99", 16'384)},
       {"[]", list_of("99", 16'385), "[100]", "[-1]", "[1.0]", "[true]", "[\"1\"]", "[null]", "1"}},
      {"seed",
       {"0", "-1", "9223372036854775807", "-9223372036854775808"},
       {"9223372036854775808", "-9223372036854775809", "1.0", "1e3", "\"1\"", "true"}},
  };
}

std::vector<FieldCase> shared_cases() {
  return {
      {"stop",
       {"\"x\"", "[]", list_of("\"x\"", 992), list_of(quoted_text(1024), 31), quoted_text(1024)},
       {"\"\"", "[\"\"]", list_of("\"x\"", 993), list_of(quoted_text(1024), 32), quoted_text(1025),
        "[1]", "[null]", "1", "true", "{}"}},
      {"stop_token_ids",
       {"[]", list_of("99", 64)},
       {list_of("99", 65), "[100]", "[-1]", "[1.5]", "5", "\"5\""}},
      {"include_stop_str_in_output", {"true", "false"}, {"0", "1", "\"true\"", "[]"}},
      {"min_tokens", {"0", "5"}, {"-1", "6", "2147483648", "1.0", "true"}, R"("max_tokens":5)"},
      {"ignore_eos", {"true", "false"}, {"0", "1", "\"true\""}},
      {"skip_special_tokens", {"true", "false"}, {"0", "1", "\"true\""}},
      {"n", {"1", "128"}, {"0", "-1", "129", "2147483648", "1.0", "3.9", "true", "\"1\""}},
      {"best_of", {"2"}, {"1", "3", "0", "129", "2.0", "true"}, R"("n":2)"},
      {"prompt_logprobs", {"0", "20"}, {"-1", "21", "1.0", "true", "\"1\""}},
      {"cache_salt",
       {"\"a\"", "\"aZ09_-\"", quoted_text(128)},
       {"\"\"", quoted_text(129), "\"a b\"", "\"a/b\"", "\"\u00e9\"", "1", "[]"}},
      {"stream", {"true", "false"}, {"0", "1", "\"true\""}},
      {"stream_options",
       {"{}", R"({"include_usage":true,"continuous_usage_stats":false})", R"({"other":1})",
        R"({"include_usage":null})"},
       {"[]", "true", R"({"include_usage":1})", R"({"continuous_usage_stats":"true"})"},
       R"("stream":true)"},
      {"stream_options", {"{}", "null"}, {R"({"include_usage":false})", R"({"other":1})"}},
      {"stream_options", {"{}"}, {R"({"include_usage":null})"}, R"("stream":false)"},
      {"return_progress", {"true", "false"}, {"0", "1", "\"true\""}},
      {"return_token_ids", {"true", "false"}, {"0", "1", "\"true\""}},
      {"return_tokens_as_token_ids", {"true", "false"}, {"0", "1", "\"true\""}},
      {"timings_per_token", {"true", "false"}, {"0", "1", "\"true\""}},
      {"add_special_tokens", {"true", "false"}, {"0", "1", "\"true\""}},
      {"response_format", {R"({"type":"json_object"})"}, {"{}", "\"text\""}},
      {"structured_outputs", {"{}", R"({"regex":"a"})"}, {"true", R"({"regex":1})"}},
      {"guided_json", {"{}", "\"{}\""}, {"1", "[]"}},
      {"guided_regex", {"\"a+\""}, {"1", "{}"}},
      {"guided_choice", {"[\"a\"]"}, {"[]", "\"a\"", "[1]"}},
      {"guided_grammar", {"\"root ::= [a]\""}, {"1", "[]"}},
      {"json_schema", {"{}", R"({"type":"object"})"}, {"1", "[]"}},
      {"grammar", {"\"\"", "\"root ::= [a]\""}, {"1", "[]"}},
      {"output_config",
       {"{}", R"({"effort":"high"})", R"({"effort":[1]})",
        R"({"format":{"type":"json_schema","schema":{"type":"object"}}})"},
       {"[]", R"({"format":{"type":"json_schema"}})", R"({"format":"json"})"}},
  };
}

std::vector<FieldCase> completion_cases() {
  return {
      {"prompt",
       {"\"a\"", "[\"a\"]", list_of("\"a\"", 1024), "[0,99]", "[[0],[99]]", list_of("[1]", 1024)},
       {"\"\"",
        "[]",
        "[\"\"]",
        "[[]]",
        list_of("\"a\"", 1025),
        list_of("[1]", 1025),
        "[100]",
        "[-1]",
        "[1.0]",
        "[true]",
        "[null]",
        "[1,\"a\"]",
        "[\"a\",1]",
        "[\"a\",[1]]",
        "[[1],\"a\"]",
        "[[1],[]]",
        "[[1],[100]]",
        "[[[1]]]",
        "[{}]",
        "{}",
        "1",
        "true"}},
      {"max_tokens",
       {"1", "2147483647"},
       {"0", "-1", "2147483648", "9223372036854775808", "1.0", "1e3", "true", "\"1\""}},
      {"echo", {"true", "false"}, {"0", "1", "\"true\""}},
      {"logprobs", {"0", "20"}, {"-1", "21", "1.0", "true", "false", "\"1\""}},
      {"parse_special", {"true", "false"}, {"0", "1", "\"true\""}},
  };
}

std::vector<FieldCase> conversation_cases() {
  return {
      {"messages",
       {"[{}]", list_of("{}", 100'000)},
       {"[]", list_of("{}", 100'001), "\"a\"", "{}", "[1]", "[\"a\"]", "[null]", "[[]]"}},
      {"tools",
       {"[]", tool(R"("name":"f")"), tool(R"("name":"f","parameters":{"type":"object"})"),
        R"([{"function":{"name":"f","parameters":null}}])",
        list_of(R"({"function":{"name":"f"}})", 512)},
       {"{}", "[1]", "[{}]", R"([{"type":"function","function":1}])", tool(""), tool(R"("name":1)"),
        tool(R"("name":"")"), tool(R"("name":)" + quoted_text(257)),
        tool(R"("name":"f","parameters":[])"), R"([{"type":"web_search","function":{"name":"f"}}])",
        list_of(R"({"function":{"name":"f"}})", 513),
        tool(R"("name":"f","description":)" + quoted_text(size_t{4} << 20))}},
      {"chat_template_kwargs", {"{}", R"({"enable_thinking":false})"}, {"[]", "\"a\"", "1"}},
      {"reasoning_effort",
       {"\"none\"", "\"minimal\"", "\"low\"", "\"medium\"", "\"high\"", "\"xhigh\"", "\"max\""},
       {"\"None\"", "\"\"", "1", "true", "[]", "{}"}},
      {"add_generation_prompt", {"true", "false"}, {"0", "1", "\"true\""}},
      {"continue_final_message", {"true", "false"}, {"0", "1", "\"true\""}},
      {"continue_final_message", {"false"}, {"true"}, R"("add_generation_prompt":true)"},
  };
}

std::vector<FieldCase> chat_cases() {
  return {
      {"max_tokens", {"1", "2147483647"}, {"0", "-1", "2147483648", "1.0", "true", "\"1\""}},
      {"max_completion_tokens", {"1", "2147483647"}, {"0", "-1", "2147483648", "1.0", "true"}},
      {"max_completion_tokens", {"7", "8"}, {"0"}, R"("max_tokens":7)"},
      {"logprobs", {"true", "false"}, {"0", "1", "5", "\"true\""}},
      {"top_logprobs", {"0", "20"}, {"-1", "21", "1.0", "true"}, R"("logprobs":true)"},
      {"top_logprobs", {"0"}, {"1"}, R"("logprobs":false)"},
      {"tool_choice",
       {"\"none\"", "\"auto\""},
       {"\"required\"", "\"f\"", R"({"type":"function","function":{"name":"f"}})", "true"}},
      {"parallel_tool_calls", {"true", "false"}, {"0", "1", "\"true\""}},
      {"include_reasoning", {"true", "false"}, {"0", "1", "\"true\""}},
  };
}

std::vector<FieldCase> tokenize_cases() {
  return {
      {"model", {"\"m\""}, {"1"}},
      {"add_special_tokens", {"true", "false"}, {"0", "1", "\"true\""}},
      {"parse_special", {"true", "false"}, {"0", "1", "\"true\""}},
      {"return_token_strs", {"true", "false"}, {"0", "1", "\"true\""}},
  };
}

std::vector<FieldCase> detokenize_cases() {
  return {{"model", {"\"m\""}, {"1"}},
          {"tokens", {"[]", "[0,99]"}, {"[100]", "[-1]", "[1.0]", "[true]", "\"a\"", "1", "{}"}}};
}

using Cases = std::vector<FieldCase>;

Cases joined(const std::vector<Cases>& parts) {
  Cases all;
  for (const Cases& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

struct Route {
  RequestKind kind;
  std::string required;  // members that a body must have
  Cases cases;
};

std::vector<Route> routes() {
  const std::string chat = R"("messages":[{"role":"user","content":"a"}])";
  return {{RequestKind::kCompletion, R"("prompt":"a")",
           joined({sampling_cases(), shared_cases(), completion_cases()})},
          {RequestKind::kChat, chat,
           joined({sampling_cases(), shared_cases(), conversation_cases(), chat_cases()})},
          {RequestKind::kTokenize, chat, joined({conversation_cases(), tokenize_cases()})},
          {RequestKind::kTokenize,
           "",
           {{"prompt", {"\"a\"", "\"\""}, {"1", "[]", "[1]", "[\"a\"]", "{}"}}}},
          {RequestKind::kDetokenize, R"("tokens":[])", detokenize_cases()}};
}

// The fault, if there is one. A request that was read must be one that the engine takes.
template <typename Request>
std::optional<http::Fault> fault_in(const Read<Request>& read) {
  if (const auto* fault = std::get_if<http::Fault>(&read)) return *fault;
  if constexpr (std::is_base_of_v<CommonRequest, Request>) {
    SamplingParams params = std::get<Request>(read).params;
    params.max_tokens = std::numeric_limits<int32_t>::max();
    EXPECT_NO_THROW(params.validate());
  }
  return std::nullopt;
}

std::optional<http::Fault> fault_of(RequestKind kind, const std::string& body) {
  const RequestRules rules{.defaults = {}, .vocab_size = kVocab};
  switch (kind) {
    case RequestKind::kCompletion:
      return fault_in(read_completion(body, rules));
    case RequestKind::kChat:
      return fault_in(read_chat(body, rules));
    case RequestKind::kTokenize:
      return fault_in(read_tokenize(body, rules));
    case RequestKind::kPin:
      return fault_in(read_pin(body, rules));
    case RequestKind::kDetokenize:
      return fault_in(read_detokenize(body, rules));
  }
  return std::nullopt;
}

// A body with the members of `parts`; a required one gives way to `name`.
std::string body_of(const std::string& required, const std::string& name, const std::string& value,
                    const std::string& others) {
  std::string members = "\"" + name + "\":" + value;
  if (!others.empty()) members += "," + others;
  const bool replaces = required.starts_with("\"" + name + "\"");
  if (!required.empty() && !replaces) members += "," + required;
  return "{" + members + "}";
}

// Which param an error of `name` has: rules between two fields may name the other one.
bool names_field(const http::Fault& fault, const FieldCase& field) {
  return fault.param.starts_with(field.name) && fault.message.starts_with(field.name);
}

void expect_limits(const Route& route, const FieldCase& field) {
  for (const std::string& value : field.good) {
    const std::string body = body_of(route.required, field.name, value, field.others);
    const auto fault = fault_of(route.kind, body);
    EXPECT_FALSE(fault) << body.substr(0, 200) << ": " << fault->message;
  }
  for (const std::string& value : field.bad) {
    const std::string body = body_of(route.required, field.name, value, field.others);
    const auto fault = fault_of(route.kind, body);
    ASSERT_TRUE(fault) << body.substr(0, 200);
    EXPECT_EQ(fault->status, 400) << body.substr(0, 200);
    EXPECT_TRUE(names_field(*fault, field)) << body.substr(0, 200) << ": " << fault->message;
    EXPECT_LT(fault->message.size(), 500u) << body.substr(0, 200);
  }
}

TEST(RequestFields, AreCheckedAtAndPastTheirLimits) {
  for (const Route& route : routes()) {
    for (const FieldCase& field : route.cases) expect_limits(route, field);
  }
}

// More than the vocabulary of the table above has.
TEST(RequestFields, BiasesHaveALimit) {
  Json body = {{"prompt", "a"}};
  for (int id = 0; id < 1024; ++id) body["logit_bias"][std::to_string(id)] = 1;
  const RequestRules rules = {.defaults = {}, .vocab_size = 2000};
  EXPECT_TRUE(std::holds_alternative<CompletionRequest>(read_completion(body.dump(), rules)));
  body["logit_bias"]["1024"] = 1;
  const auto read = read_completion(body.dump(), rules);
  const auto* fault = std::get_if<http::Fault>(&read);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->param, "logit_bias");
  EXPECT_TRUE(fault->message.starts_with(
      "logit_bias is an object of 1025; it must be an object of at most 1024 numbers"))
      << fault->message;
}

// Two members are required, so that the table above cannot have them.
TEST(RequestFields, PinsNeedANameAndAPrefix) {
  const std::string prompt = R"(,"prompt":"a"})", name64(64, 'a');
  for (const std::string& name : {std::string("a"), std::string("A-b_c.9"), name64}) {
    const auto fault = fault_of(RequestKind::kPin, "{\"name\":\"" + name + "\"" + prompt);
    EXPECT_FALSE(fault) << name << ": " << fault->message;
  }
  for (const std::string value :
       {"\"\"", "\".a\"", "\"a/b\"", "\"a b\"", "1", "[]", "null", "\"\\u00e4\""}) {
    const auto fault = fault_of(RequestKind::kPin, "{\"name\":" + value + prompt);
    ASSERT_TRUE(fault) << value;
    EXPECT_EQ(fault->status, 400) << value;
    EXPECT_EQ(fault->param, "name") << value;
  }
  EXPECT_TRUE(fault_of(RequestKind::kPin, "{\"name\":\"" + name64 + "a\"" + prompt));
  EXPECT_TRUE(fault_of(RequestKind::kPin, R"({"name":"a"})"));
  EXPECT_TRUE(fault_of(RequestKind::kPin, R"({"prompt":"a"})"));
  EXPECT_TRUE(fault_of(RequestKind::kPin, R"({"name":"a","prompt":"a","cache_salt":1})"));
}

TEST(RequestFields, AllHaveARowHere) {
  std::map<RequestKind, std::set<std::string>> tested;
  for (const Route& route : routes()) {
    for (const FieldCase& field : route.cases) tested[route.kind].insert(field.name);
  }
  for (const auto& [kind, names] : tested) {
    std::set<std::string> known;
    for (const OptionFacts& facts : request_fields(kind)) {
      EXPECT_FALSE(facts.help.empty()) << facts.name;
      EXPECT_FALSE(allowed_values(facts, {.vocab_size = kVocab}).empty()) << facts.name;
      if (has_effect(facts)) known.insert(std::string(facts.name));
    }
    EXPECT_EQ(known, names);
  }
}

// A row is all that a sampling option needs to be one of the API.
TEST(RequestFields, HaveAllRowsOfSampling) {
  for (const RequestKind kind : {RequestKind::kCompletion, RequestKind::kChat}) {
    std::set<std::string_view> names;
    for (const OptionFacts& facts : request_fields(kind)) names.insert(facts.name);
    for (const auto& row : kSamplingRows) {
      EXPECT_TRUE(names.contains(row.facts.name)) << row.facts.name;
    }
  }
}

TEST(RequestFields, HaveNamesOfTheirOwn) {
  for (const Route& route : routes()) {
    std::set<std::string_view> names;
    for (const OptionFacts& facts : request_fields(route.kind)) {
      EXPECT_TRUE(names.insert(facts.name).second) << facts.name;
    }
  }
}

// Null is the same as left out, whatever the field is.
TEST(RequestFields, MayBeNullUnlessRequired) {
  for (const Route& route : routes()) {
    for (const OptionFacts& facts : request_fields(route.kind)) {
      const std::string name(facts.name);
      const auto fault = fault_of(route.kind, body_of(route.required, name, "null", ""));
      const bool missing = route.required.empty() || route.required.starts_with("\"" + name + "\"");
      EXPECT_EQ(fault.has_value(), missing) << name << (fault ? ": " + fault->message : "");
      EXPECT_TRUE(!fault || !facts.field.required || fault->param == name) << name;
    }
  }
}

TEST(RequestFields, HintsMayHaveAnyValue) {
  const std::vector<std::string> hints = {"user",
                                          "metadata",
                                          "store",
                                          "service_tier",
                                          "cache_control",
                                          "prompt_cache_key",
                                          "prompt_cache_retention",
                                          "safety_identifier",
                                          "client_metadata",
                                          "context_management",
                                          "include",
                                          "verbosity"};
  for (const Route& route : routes()) {
    if (route.kind != RequestKind::kCompletion && route.kind != RequestKind::kChat) continue;
    for (const std::string& name : hints) {
      for (const char* value : {"true", "-1", "1e308", "\"x\"", "[1,{}]", "{\"a\":[]}"}) {
        EXPECT_FALSE(fault_of(route.kind, body_of(route.required, name, value, ""))) << name;
      }
    }
  }
}

// Of everything that is not done: what routers fill in, and what would change the answer.
const std::vector<FieldCase> kNotDone = {
    {"suffix", {"\"\""}, {"\"a\"", "1"}},
    {"use_beam_search", {"false"}, {"true", "0", "1"}},
    {"prompt_embeds", {}, {"\"a\"", "[]"}},
    {"chat_template", {}, {"\"a\"", "\"\""}},
    {"kv_transfer_params", {"{}"}, {R"({"a":1})"}},
    {"truncate_prompt_tokens", {}, {"-1", "0", "1"}},
    {"bad_words", {"[]"}, {"[\"a\"]"}},
    {"logprob_token_ids", {"[]"}, {"[1]"}},
    {"thinking_token_budget", {}, {"0", "100"}},
    {"priority", {"0", "0.0"}, {"1", "-1", "false"}},
    {"n_probs", {"0"}, {"1", "false"}},
    {"n_predict", {"-1"}, {"1", "0", "-2"}},
};

const std::vector<FieldCase> kNotDoneInChats = {
    {"audio", {}, {"{}"}},
    {"modalities", {R"(["text"])"}, {R"(["text","audio"])", "[]", "\"text\""}},
    {"parse_special", {"true"}, {"false", "1"}},
    {"functions", {"[]"}, {"[{}]"}},
};

TEST(RequestFields, WhatIsNotDoneIsRefusedExceptForNeutralValues) {
  const Route completion = {RequestKind::kCompletion, R"("prompt":"a")", kNotDone};
  const Route chat = {RequestKind::kChat, R"("messages":[{}])",
                      joined({kNotDone, kNotDoneInChats})};
  for (const Route& route : {completion, chat}) {
    for (const FieldCase& field : route.cases) expect_limits(route, field);
  }
}

// Any value but null and the neutral ones: an object that no table has as neutral value.
TEST(RequestFields, NothingThatIsNotDoneTakesAnUnknownValue) {
  for (const Route& route : routes()) {
    for (const OptionFacts& facts : request_fields(route.kind)) {
      if (facts.field.form != FieldForm::kNotDone) continue;
      const std::string name(facts.name);
      const auto fault = fault_of(route.kind, body_of(route.required, name, R"({"odd":1})", ""));
      ASSERT_TRUE(fault) << name;
      EXPECT_EQ(fault->param, name);
    }
  }
}

}  // namespace
}  // namespace sluice::api
