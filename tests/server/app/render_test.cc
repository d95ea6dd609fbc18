// The /render routes against the routes that generate: the same ids, the same errors, and nothing
// for the engine to do.
#include <gtest/gtest.h>

#include "server/api/answer/rendered_prompt.h"
#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::status_of;
using testing::App;
using testing::body_of;
using testing::Json;
using testing::post;

const char* const kChats = "/v1/chat/completions";

std::string rendering(const std::string& path) { return path + "/render"; }

Json chat_of(const std::string& text) {
  return {{"messages", {{{"role", "user"}, {"content", text}}}}};
}

class AppRender : public ::testing::Test {
 protected:
  void SetUp() override { app_.serve(); }

  Json answered(const std::string& path, const Json& request) {
    const std::string answer = post(app_, path, request);
    EXPECT_EQ(status_of(answer), 200) << answer;
    return body_of(answer);
  }
  // The ids of all prompts that the route itself has computed.
  std::vector<Json> generated_ids(const std::string& path, Json request) {
    request["return_token_ids"] = true;
    request["max_tokens"] = 1;
    const Json body = answered(path, request);
    std::vector<Json> ids;
    if (path == kChats) return {body.at("prompt_token_ids")};
    for (const Json& choice : body.at("choices")) ids.push_back(choice.at("prompt_token_ids"));
    return ids;
  }

  App app_;
};

TEST_F(AppRender, HasTheIdsThatTheRouteComputes) {
  const Json prompts[] = {"one text", Json{"first", "and a second"}, Json{65, 66, 67},
                          Json{{65, 66}, {67, 68, 69}}};
  for (const Json& prompt : prompts) {
    const Json request = {{"prompt", prompt}};
    const Json rendered = answered(rendering(testing::kCompletions), request);
    const std::vector<Json> ids = generated_ids(testing::kCompletions, request);
    ASSERT_EQ(rendered.size(), ids.size()) << rendered;
    std::set<std::string> names;
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(rendered[i].at("token_ids"), ids[i]);
      EXPECT_TRUE(rendered[i].at("features").is_null());
      names.insert(rendered[i].at("request_id").get<std::string>());
    }
    EXPECT_EQ(names.size(), ids.size()) << "each prompt has a name of its own";
  }
  for (const char* text : {"Hi", "<|im_start|>user\nno token<|im_end|>"}) {
    const Json rendered = answered(rendering(kChats), chat_of(text));
    EXPECT_EQ(rendered.at("token_ids"), generated_ids(kChats, chat_of(text)).at(0));
    EXPECT_TRUE(rendered.at("request_id").get<std::string>().starts_with("chatcmpl-"));
    EXPECT_EQ(rendered.size(), 4U) << rendered;
  }
}

// What the request does not say comes from the model, and the limit from the room.
TEST_F(AppRender, HasTheParametersThatTheEngineWouldGet) {
  Json request = chat_of("Hi");
  request.update({{"temperature", 0.7}, {"top_p", 0.9}, {"stop", {"x"}}, {"seed", 7}, {"n", 3}});
  const Json rendered = answered(rendering(kChats), request);
  const Json& params = rendered.at("sampling_params");
  EXPECT_EQ(params.at("temperature").dump(), "0.7");
  EXPECT_EQ(params.at("top_p").dump(), "0.9");
  EXPECT_EQ(params.at("stop"), Json{"x"});
  EXPECT_EQ(params.at("seed"), 7);
  EXPECT_EQ(params.at("max_tokens"), 512 - std::ssize(rendered.at("token_ids")));
  EXPECT_FALSE(params.contains("logprobs")) << "not asked for";
  EXPECT_EQ(answered(rendering(testing::kCompletions),
                     {{"prompt", "a"}})[0]["sampling_params"]["max_tokens"],
            16);
}

TEST_F(AppRender, RefusesWhatTheRouteRefuses) {
  const std::string long_text(600, 'x');
  Json unknown_id = {{"prompt", Json::array({1 << 30})}};
  const std::pair<std::string, Json> requests[] = {
      {testing::kCompletions, Json::object()},
      {testing::kCompletions, {{"prompt", "a"}, {"model", "other"}}},
      {testing::kCompletions, {{"prompt", "a"}, {"temperature", -1}}},
      {testing::kCompletions, {{"prompt", long_text}}},
      {testing::kCompletions, {{"prompt", "a"}, {"stop_token_ids", {100'000}}}},
      {testing::kCompletions, unknown_id},
      {kChats, Json::object()},
      {kChats, chat_of(long_text)},
      {kChats, {{"messages", {{{"role", "nobody"}, {"content", 3}}}}}},
  };
  for (const auto& [path, request] : requests) {
    const std::string refused = post(app_, path, request);
    const std::string rendered = post(app_, rendering(path), request);
    EXPECT_GE(status_of(refused), 400) << request;
    EXPECT_EQ(status_of(rendered), status_of(refused)) << request;
    EXPECT_EQ(body_of(rendered), body_of(refused)) << request;
  }
}

// The engine stands still, and no request is counted.
TEST_F(AppRender, NeedsNoEngine) {
  app_.brake.is_held = true;
  answered(rendering(testing::kCompletions), {{"prompt", "a"}});
  answered(rendering(kChats), chat_of("Hi"));
  EXPECT_EQ(app_.service->snapshot().num_accepted, 0);
}

TEST(RenderedPrompt, WritesNumbersAsTheyWereGiven) {
  SamplingParams params{.temperature = 0.1f, .logit_bias = {{7, -1.5f}}, .max_tokens = 3};
  params.allowed_token_ids = {1, 2};
  const Json json = api::sampling_json(params);
  EXPECT_EQ(json.at("temperature").dump(), "0.1");
  EXPECT_EQ(json.at("logit_bias"), (Json{{"7", -1.5}}));
  EXPECT_EQ(json.at("allowed_token_ids"), (Json{1, 2}));
  EXPECT_EQ(json.at("max_tokens"), 3);
  EXPECT_EQ(json.at("skip_special_tokens"), true);
  EXPECT_FALSE(json.contains("top_k"));
}

}  // namespace
}  // namespace sluice::server
