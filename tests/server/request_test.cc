// Bodies of requests as values: strict JSON, defaults, rules between members, room and choices.
#include "server/api/request/request.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "io/json_type.h"

namespace sluice::api {
namespace {

constexpr int64_t kMaxSeed = std::numeric_limits<int64_t>::max();

const RequestRules kRules = {
    .defaults = {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1.05f},
    .vocab_size = 1000};

template <typename Request>
Request value_of(Read<Request> read) {
  if (const auto* fault = std::get_if<http::Fault>(&read)) {
    ADD_FAILURE() << fault->message;
    return {};
  }
  return std::get<Request>(std::move(read));
}

CompletionRequest completion(const std::string& members) {
  return value_of(read_completion("{\"prompt\":\"a\"" + members + "}", kRules));
}

ChatRequest chat(const std::string& members) {
  return value_of(
      read_chat(R"({"messages":[{"role":"user","content":"a"}])" + members + "}", kRules));
}

http::Fault fault_of_body(const std::string& body) {
  const auto read = read_completion(body, kRules);
  const auto* fault = std::get_if<http::Fault>(&read);
  if (fault != nullptr) return *fault;
  ADD_FAILURE() << "accepted " << body.substr(0, 200);
  return {};
}

std::string nested(const std::string& open, const std::string& close, int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(RequestBody, IsStrictJson) {
  const std::string deep_list = nested("[", "]", 64);
  const std::string deep_object = nested("{\"a\":", "}", 64);
  for (const std::string& body : {
           std::string(""),
           std::string(" "),
           std::string("{"),
           std::string("nul"),
           std::string(R"({"prompt":"a"} x)"),
           std::string(R"({"prompt":"a"}{})"),
           std::string(R"({"prompt":"a","prompt":"a"})"),
           std::string(R"({"prompt":"a","other":{"k":1,"k":2}})"),
           std::string(R"({"prompt":"a","promp\u0074":"a"})"),
           std::string(R"({"prompt":"\ud800"})"),
           std::string(R"({"prompt":"\udc00\ud800"})"),
           std::string(R"({"prompt":"\ud800\u0041"})"),
           std::string(R"({"prompt":"a","temperature":NaN})"),
           std::string(R"({"prompt":"a","temperature":Infinity})"),
           std::string(R"({"prompt":"a","temperature":1e400})"),
           std::string(R"({"prompt":"a","temperature":-1e400})"),
           std::string(R"({"prompt":"a","n":01})"),
           std::string(R"({"prompt":"a","n":+1})"),
           std::string(R"({"prompt":"a",})"),
           std::string("{'prompt':'a'}"),
           std::string("{\"prompt\":\"a\"} // c"),
           std::string("{\"prompt\":\"a\nb\"}"),
           std::string("{\"prompt\":\"\xff\"}"),
           std::string("{\"prompt\":\"\xed\xa0\x80\"}"),
           std::string("\xef\xbb\xbf{\"prompt\":\"a\"}"),
           std::string("{\"prompt\":\"a\0\"}", 14),
           std::string("{\"prompt\":\"a\"}\0", 15),
           R"({"prompt":"a","other":)" + deep_list + "}",
           R"({"prompt":"a","other":)" + deep_object + "}",
           "\x1f\x8b\x08" + std::string(20, 'z'),
       }) {
    const http::Fault fault = fault_of_body(body);
    EXPECT_EQ(fault.status, 400) << body;
    EXPECT_EQ(fault.param, "") << body;
    EXPECT_TRUE(fault.message.starts_with("the request's body: byte ")) << fault.message;
    EXPECT_EQ(fault.message.find("file"), std::string::npos) << fault.message;
  }
  completion(",\"other\":" + nested("[", "]", 63));
  EXPECT_EQ(std::get<std::string>(
                value_of(read_completion(R"({"prompt":"\ud83d\ude00"})", kRules)).prompts[0]),
            "\xf0\x9f\x98\x80");
}

TEST(RequestBody, IsAnObject) {
  for (const char* body : {"[]", "1", "\"a\"", "null", "true"}) {
    EXPECT_NE(fault_of_body(body).message.find("must be an object"), std::string::npos) << body;
  }
}

TEST(RequestBody, MayBeVeryNested) {
  EXPECT_EQ(fault_of_body(std::string(10'000'000, '[')).status, 400);
}

TEST(RequestBody, UnknownMembersAreCountedAndFewNamesKept) {
  std::string members = R"(,"temprature":1,"\u001b[31m":2)";
  for (int i = 0; i < 100; ++i) members += ",\"x" + std::to_string(i) + "\":[]";
  const CompletionRequest request =
      completion(members + R"(,"user":"u","stream":true,"stream_options":{"y":1})");
  EXPECT_EQ(request.unknown.count, 103u);
  ASSERT_EQ(request.unknown.names.size(), UnknownFields::kMaxKept);
  EXPECT_EQ(request.unknown.names[0], "temprature");
  EXPECT_EQ(request.unknown.names[1], "?[31m");
  EXPECT_EQ(completion(R"(,"stream":true,"stream_options":{"y":1})").unknown.names.at(0),
            "stream_options.y");
  EXPECT_EQ(completion("").unknown.count, 0u);
}

TEST(CompletionRequest, TakesDefaultsOfTheModel) {
  const CompletionRequest request = completion("");
  EXPECT_EQ(request.params.temperature, 0.6f);
  EXPECT_EQ(request.params.top_k, 20);
  EXPECT_EQ(request.params.top_p, 0.95f);
  EXPECT_EQ(request.params.repetition_penalty, 1.05f);
  EXPECT_EQ(request.model, std::nullopt);
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.params.seed, std::nullopt);
  EXPECT_EQ(request.params.logprobs, std::nullopt);
  EXPECT_EQ(request.params.prompt_logprobs, std::nullopt);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.stream || request.include_usage || request.continuous_usage_stats ||
               request.return_progress || request.return_token_ids ||
               request.return_tokens_as_token_ids || request.timings_per_token || request.echo ||
               request.include_stop_str_in_output);
  EXPECT_TRUE(request.add_special_tokens && request.parse_special);
  EXPECT_TRUE(request.params.skip_special_tokens);
}

TEST(CompletionRequest, KeepsEveryMember) {
  const CompletionRequest request = completion(
      R"(,"model":"m","temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.25,)"
      R"("repetition_penalty":1.5,"frequency_penalty":-1,"presence_penalty":2,)"
      R"("logit_bias":{"5":-1.5},"allowed_token_ids":[5,6],)"
      R"("seed":7,"stop":["x","y"],"stop_token_ids":[8],"include_stop_str_in_output":true,)"
      R"("min_tokens":3,"ignore_eos":true,"skip_special_tokens":false,"n":2,"best_of":2,)"
      R"("prompt_logprobs":4,"cache_salt":"s","stream":true,)"
      R"("stream_options":{"include_usage":true,"continuous_usage_stats":true},)"
      R"("return_progress":true,"return_token_ids":true,"return_tokens_as_token_ids":true,)"
      R"("timings_per_token":true,"max_tokens":9,"echo":true,"logprobs":2,)"
      R"("add_special_tokens":false,"parse_special":false)");
  const SamplingParams& params = request.params;
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(params.temperature, 0.0f);
  EXPECT_EQ(params.top_p, 0.5f);
  EXPECT_EQ(params.top_k, std::nullopt);
  EXPECT_EQ(params.min_p, 0.25f);
  EXPECT_EQ(params.repetition_penalty, 1.5f);
  EXPECT_EQ(params.frequency_penalty, -1.0f);
  EXPECT_EQ(params.presence_penalty, 2.0f);
  EXPECT_EQ(params.logit_bias, (std::map<int32_t, float>{{5, -1.5f}}));
  EXPECT_EQ(params.allowed_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(params.seed, 7);
  EXPECT_EQ(params.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(params.stop_token_ids, std::vector<int32_t>{8});
  EXPECT_EQ(params.min_tokens, 3);
  EXPECT_TRUE(params.ignore_eos && !params.skip_special_tokens);
  EXPECT_EQ(params.logprobs, 2);
  EXPECT_EQ(params.prompt_logprobs, 4);
  EXPECT_EQ(request.prompt_logprobs, 4);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.params.cache_salt, "s");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_TRUE(request.include_stop_str_in_output && request.stream && request.include_usage &&
              request.continuous_usage_stats && request.return_progress &&
              request.return_token_ids && request.return_tokens_as_token_ids &&
              request.timings_per_token && request.echo);
  EXPECT_FALSE(request.add_special_tokens || request.parse_special);
  EXPECT_EQ(request.unknown.count, 0u);
}

TEST(CompletionRequest, HasPromptsOfOneKind) {
  const auto prompts = [](const std::string& prompt) {
    return value_of(read_completion("{\"prompt\":" + prompt + "}", kRules)).prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(prompts("\"a\""), (std::vector<PromptInput>{"a"}));
  EXPECT_EQ(prompts("[\"a\",\"b\"]"), (std::vector<PromptInput>{"a", "b"}));
  EXPECT_EQ(prompts("[1,2]"), (std::vector<PromptInput>{Ids{1, 2}}));
  EXPECT_EQ(prompts("[[1,2],[3]]"), (std::vector<PromptInput>{Ids{1, 2}, Ids{3}}));
  const http::Fault fault = fault_of_body(R"({"prompt":[[1],[2,3,1000]]})");
  EXPECT_EQ(fault.param, "prompt");
  EXPECT_TRUE(fault.message.starts_with("prompt[1][2] is 1000; it must be ")) << fault.message;
}

TEST(CompletionRequest, EchoAllowsNoTokensAndScoresThePrompt) {
  EXPECT_EQ(completion(R"(,"echo":true,"max_tokens":0)").max_tokens, 0);
  EXPECT_EQ(fault_of_body(R"({"prompt":"a","max_tokens":0})").param, "max_tokens");
  const auto scored = completion(R"(,"echo":true,"logprobs":1,"max_tokens":1)");
  EXPECT_EQ(scored.params.prompt_logprobs, 1);
  EXPECT_EQ(scored.prompt_logprobs, std::nullopt) << "not asked for";
  const auto both = completion(R"(,"echo":true,"logprobs":1,"prompt_logprobs":5)");
  EXPECT_EQ(both.params.prompt_logprobs, 5);
  EXPECT_EQ(both.prompt_logprobs, 5);
  EXPECT_EQ(completion(R"(,"echo":true)").params.prompt_logprobs, std::nullopt);
  EXPECT_EQ(completion(R"(,"logprobs":1)").params.prompt_logprobs, std::nullopt);
}

TEST(CompletionRequest, SeedsKeepTheirSign) {
  EXPECT_EQ(completion(R"(,"seed":-1)").params.seed, -1);
  EXPECT_EQ(completion(R"(,"seed":9223372036854775807)").params.seed, kMaxSeed);
  EXPECT_EQ(completion(R"(,"seed":-9223372036854775808)").params.seed, -kMaxSeed - 1);
  const auto seeds = choices_of(completion(R"(,"n":3,"seed":-2)"), 1);
  EXPECT_EQ(seeds.at(0).seed, -2);
  EXPECT_EQ(seeds.at(2).seed, 0);
}

TEST(CompletionRequest, OneStopTextIsAListOfOne) {
  EXPECT_EQ(completion(R"(,"stop":"x")").params.stop, std::vector<std::string>{"x"});
}

TEST(ChatRequest, TakesDefaults) {
  const ChatRequest request = chat("");
  EXPECT_EQ(request.params.temperature, 0.6f);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_TRUE(request.parse_special);
  EXPECT_TRUE(request.conversation.add_generation_prompt);
  EXPECT_FALSE(request.conversation.continue_final_message);
  EXPECT_TRUE(request.conversation.tools.is_null());
  EXPECT_EQ(request.conversation.template_kwargs, Json::object());
  EXPECT_EQ(request.conversation.reasoning_effort, std::nullopt);
  EXPECT_EQ(request.tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(request.parallel_tool_calls && request.include_reasoning);
  EXPECT_EQ(request.params.logprobs, std::nullopt);
  EXPECT_EQ(request.max_tokens, std::nullopt);
}

TEST(ChatRequest, KeepsTheOrderOfMembers) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"b","a":1}],"tools":[{"function":{"name":"f",)"
      R"("parameters":{"z":1,"a":2}}}],"chat_template_kwargs":{"y":1,"b":2},)"
      R"("reasoning_effort":"low","tool_choice":"none","parallel_tool_calls":false,)"
      R"("include_reasoning":false})";
  const ChatRequest request = value_of(read_chat(body, kRules));
  EXPECT_EQ(request.conversation.messages.dump(), R"([{"role":"user","content":"b","a":1}])");
  EXPECT_EQ(request.conversation.tools.dump(),
            R"([{"function":{"name":"f","parameters":{"z":1,"a":2}}}])");
  EXPECT_EQ(request.conversation.template_kwargs.dump(), R"({"y":1,"b":2})");
  EXPECT_EQ(request.conversation.reasoning_effort, "low");
  EXPECT_EQ(request.tool_choice, ToolChoice::kNone);
  EXPECT_FALSE(request.parallel_tool_calls || request.include_reasoning);
}

TEST(ChatRequest, MembersThatBelongTogether) {
  EXPECT_EQ(chat(R"(,"max_completion_tokens":5)").max_tokens, 5);
  EXPECT_EQ(chat(R"(,"max_completion_tokens":5,"max_tokens":7)").max_tokens, 5);
  EXPECT_EQ(chat(R"(,"max_tokens":7,"max_completion_tokens":5)").max_tokens, 5);
  EXPECT_EQ(chat(R"(,"logprobs":true)").params.logprobs, 0);
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":3)").params.logprobs, 3);
  EXPECT_EQ(chat(R"(,"logprobs":false,"top_logprobs":0)").params.logprobs, std::nullopt);
  const ChatRequest going_on = chat(R"(,"continue_final_message":true)");
  EXPECT_TRUE(going_on.conversation.continue_final_message);
  EXPECT_FALSE(going_on.conversation.add_generation_prompt);
  EXPECT_TRUE(chat(R"(,"tools":[])").conversation.tools.is_null());
}

TEST(TokenizeRequest, IsATextOrAConversation) {
  const auto text = value_of(read_tokenize(R"({"prompt":"a","return_token_strs":true})", kRules));
  EXPECT_EQ(std::get<std::string>(text.input), "a");
  EXPECT_TRUE(text.add_special_tokens && text.parse_special && text.return_token_strs);
  const auto messages = value_of(read_tokenize(
      R"({"messages":[{"role":"user"}],"add_generation_prompt":false,"stream":true})", kRules));
  EXPECT_FALSE(messages.add_special_tokens) << "as in a chat";
  EXPECT_FALSE(std::get<Conversation>(messages.input).add_generation_prompt);
  EXPECT_EQ(messages.unknown.count, 1u);
  for (const char* body : {"{}", R"({"prompt":"a","messages":[{}]})"}) {
    EXPECT_EQ(std::get<http::Fault>(read_tokenize(body, kRules)).param, "prompt") << body;
  }
}

TEST(DetokenizeRequest, HasTokens) {
  EXPECT_EQ(value_of(read_detokenize(R"({"tokens":[1,999]})", kRules)).tokens,
            (std::vector<int32_t>{1, 999}));
  EXPECT_EQ(std::get<http::Fault>(read_detokenize("{}", kRules)).param, "tokens");
}

int32_t tokens_of(const CommonRequest& request, int64_t prompt, int64_t limit) {
  const auto tokens = resolve_max_tokens(request, prompt, limit);
  if (const auto* fault = std::get_if<http::Fault>(&tokens)) {
    ADD_FAILURE() << fault->message;
    return -1;
  }
  return std::get<int32_t>(tokens);
}

TEST(ResolveMaxTokens, KeepsWhatWasAskedAndShrinksToTheRoom) {
  EXPECT_EQ(tokens_of(completion(""), 100, 1000), 16);
  EXPECT_EQ(tokens_of(completion(""), 990, 1000), 10);
  EXPECT_EQ(tokens_of(chat(""), 100, 1000), 900);
  EXPECT_EQ(tokens_of(chat(""), 1, int64_t{1} << 40), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(tokens_of(chat(R"(,"max_tokens":900)"), 100, 1000), 900);
  EXPECT_EQ(tokens_of(completion(R"(,"echo":true,"max_tokens":0)"), 999, 1000), 1);
}

TEST(ResolveMaxTokens, ClampsToTheRoom) {
  for (const CommonRequest& request : {CommonRequest(chat(R"(,"max_tokens":900)")),
                                       CommonRequest(completion(R"(,"max_tokens":900)"))}) {
    EXPECT_EQ(tokens_of(request, 99, 1000), 900);
    EXPECT_EQ(tokens_of(request, 100, 1000), 900);
    EXPECT_EQ(tokens_of(request, 101, 1000), 899);
    EXPECT_EQ(tokens_of(request, 999, 1000), 1);
  }
  EXPECT_EQ(tokens_of(chat(R"(,"max_tokens":2147483647)"), 1, 1000), 999);
}

// A prompt that leaves no room is refused all the same, and max_tokens is not blamed for it.
void expect_overflow(const CommonRequest& request, int64_t prompt) {
  const auto tokens = resolve_max_tokens(request, prompt, 1000);
  const auto* fault = std::get_if<http::Fault>(&tokens);
  ASSERT_NE(fault, nullptr) << prompt;
  EXPECT_TRUE(fault->message.starts_with("This model's maximum context length is 1000 tokens"));
  EXPECT_EQ(fault->param, "");
  const Json error = Json::parse(http::fault_body(*fault))["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["type"], "BadRequestError");
  EXPECT_EQ(error["context_length"],
            Json({{"limit", 1000}, {"prompt_tokens", prompt}, {"max_tokens", 1}}));
}

TEST(ResolveMaxTokens, RefusesWhatExceedsTheContext) {
  expect_overflow(chat(R"(,"max_tokens":1)"), 1000);
  expect_overflow(chat(R"(,"max_tokens":901)"), 1000);
  expect_overflow(chat(""), 1000);
  expect_overflow(completion(""), 5000);
  expect_overflow(completion(R"(,"echo":true,"max_tokens":0)"), 1000);
}

TEST(ResolveMaxTokens, RefusesMoreMinTokensThanFit) {
  const auto tokens = resolve_max_tokens(completion(R"(,"min_tokens":17)"), 1, 1000);
  EXPECT_EQ(std::get<http::Fault>(tokens).param, "min_tokens");
  EXPECT_EQ(tokens_of(completion(R"(,"min_tokens":16)"), 1, 1000), 16);
}

TEST(ChoicesOf, NumberPromptsAndAnswers) {
  const auto request = value_of(read_completion(R"({"prompt":["a","b"],"n":3,"seed":5})", kRules));
  const std::vector<Choice> choices = choices_of(request, request.prompts.size());
  ASSERT_EQ(choices.size(), 6u);
  for (int32_t i = 0; i < 6; ++i) {
    const Choice& choice = choices[static_cast<size_t>(i)];
    EXPECT_EQ(choice.index, i);
    EXPECT_EQ(choice.prompt, static_cast<size_t>(i / 3));
    EXPECT_EQ(choice.seed, 5 + i % 3);
  }
  EXPECT_EQ(choices_of(chat(""), 1).at(0).seed, std::nullopt);
  const auto last = completion(R"(,"n":2,"seed":9223372036854775807)");
  EXPECT_EQ(choices_of(last, 1).at(1).seed, 0);
}

TEST(FaultBody, HasTheShapeOfOpenAiErrors) {
  const http::Fault fault = fault_of_body(R"({"prompt":"a","n":0})");
  EXPECT_EQ(http::fault_body(fault),
            R"({"error":{"message":"n is 0; it must be an integer from 1 to 128",)"
            R"("type":"BadRequestError","param":"n","code":null}})");
  EXPECT_EQ(Json::parse(http::fault_body(fault_of_body("{")))["error"]["param"], nullptr);
}

// A text of OpenAI's where it has one, never a number.
TEST(FaultBody, HasCodesOfOpenAi) {
  const auto code = [](const http::Fault& fault) {
    return Json::parse(http::fault_body(fault))["error"]["code"];
  };
  EXPECT_EQ(code({.status = 401}), "invalid_api_key");
  EXPECT_EQ(code({.status = 404, .param = "model"}), "model_not_found");
  EXPECT_EQ(code({.status = 404}), nullptr);
  EXPECT_EQ(code({.status = 429}), "rate_limit_exceeded");
  for (const int status : {400, 403, 405, 500, 503}) EXPECT_EQ(code({.status = status}), nullptr);
}

TEST(ChatRequest, UsageInEveryChunkNeedsUsage) {
  EXPECT_FALSE(chat(R"(,"stream":true,"stream_options":{"continuous_usage_stats":true})")
                   .continuous_usage_stats);
  EXPECT_TRUE(chat(R"(,"stream":true,"stream_options":{"continuous_usage_stats":true,)"
                   R"("include_usage":true})")
                  .continuous_usage_stats);
}

}  // namespace
}  // namespace sluice::api
