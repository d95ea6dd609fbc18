// Bodies and heads that no client of good will sends: every field with every kind of wrong value,
// JSON that is none, and requests from where none may come. Each is answered with a typed error or
// as what it says, and nothing of a refused one reaches the engine.
#include <gtest/gtest.h>

#include "server/api/request/request.h"
#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::has;
using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::body_of;
using testing::Json;
using testing::post_text;

struct Route {
  api::RequestKind kind;
  const char* path;
  Json base;  // a body that is answered at once
};

std::vector<Route> routes() {
  const Json messages = {{{"role", "user"}, {"content", "a"}}};
  return {{api::RequestKind::kCompletion, "/v1/completions", {{"prompt", "ab"}, {"max_tokens", 1}}},
          {api::RequestKind::kChat,
           "/v1/chat/completions",
           {{"messages", messages}, {"max_tokens", 1}}},
          {api::RequestKind::kTokenize, "/tokenize", {{"prompt", "ab"}}},
          {api::RequestKind::kDetokenize, "/detokenize", {{"tokens", {1, 2}}}}};
}

// As text, since some are no JSON. None of them is a large amount of work where it is allowed.
const std::vector<std::string> kValues = {"2147483648",
                                          "-2147483649",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "18446744073709551616",
                                          "1e308",
                                          "1e400",
                                          "-1e-400",
                                          "3.9",
                                          "-0.0",
                                          "NaN",
                                          "-1",
                                          "0",
                                          "true",
                                          "null",
                                          "\"\"",
                                          "\"\\ud800\"",
                                          "\"\\u0000\"",
                                          "[]",
                                          "[null]",
                                          "[[[[]]]]",
                                          "{}",
                                          R"({"a":{"a":[]},"b":null})",
                                          "\"x"};

// The base with one member replaced by a text.
std::string with_member(Json base, const std::string& name, const std::string& value) {
  base.erase(name);
  std::string text = base.dump();
  text.pop_back();
  return text + (base.empty() ? "" : ",") + Json(name).dump() + ":" + value + "}";
}

// Sends on a connection that goes on, unless the server closed it; the answer with its body.
std::string exchange(const App& app, std::unique_ptr<RawClient>& client, const std::string& text) {
  if (client == nullptr || !client->send(text)) {
    client = std::make_unique<RawClient>(app.server->port());
    client->send(text);
  }
  std::string answer = client->read_answer();
  if (has(answer, "Transfer-Encoding")) answer += client->read_until("\r\n0\r\n\r\n");
  if (has(answer, "Connection: close")) client.reset();
  return answer;
}

void expect_typed(const std::string& answer, const std::string& body) {
  const int status = status_of(answer);
  const bool is_unknown_model = status == 404 && has(answer, "\"param\":\"model\"");
  EXPECT_TRUE(status == 200 || status == 400 || is_unknown_model) << body << "\n" << answer;
  if (status != 400) return;
  const Json error = body_of(answer)["error"];
  EXPECT_EQ(error["type"], "BadRequestError") << body << "\n" << answer;
  EXPECT_TRUE(error["code"].is_null() || error["code"].is_string());
  EXPECT_FALSE(error["message"].get<std::string>().empty());
  EXPECT_LT(answer.size(), 2000U) << "an error must not give back what it got";
}

TEST(Hostile, EveryFieldOfEveryRoute) {
  App app;
  app.serve();
  std::unique_ptr<RawClient> client;
  size_t num_sent = 0;
  for (const Route& route : routes()) {
    for (const OptionFacts& facts : api::request_fields(route.kind)) {
      for (size_t i = 0; i < kValues.size(); ++i) {
        // Fields without effect and those that are refused differ in their names alone.
        if (!api::has_effect(facts) && (i + facts.name.size()) % 8 != 0) continue;
        const std::string body = with_member(route.base, std::string(facts.name), kValues[i]);
        expect_typed(exchange(app, client, post_text(route.path, body)), body);
        ++num_sent;
      }
    }
  }
  EXPECT_GT(num_sent, 2000U);
  EXPECT_TRUE(testing::happens_soon([&] { return app.is_free(); }));
  EXPECT_EQ(app.metric("vllm:request_success_total{finished_reason=error}"), 0);
}

std::string nested(size_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (size_t i = 0; i < depth; ++i) text += open;
  for (size_t i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(Hostile, BodiesThatAreNoJson) {
  App app;
  app.serve();
  const std::string begin = R"({"prompt":"a","max_tokens":1,"x":)";
  const std::vector<std::string> bodies = {
      "",
      " ",
      "null",
      "[]",
      "1",
      "\"prompt\"",
      "{",
      "{}{}",
      R"({"prompt":"a"}x)",
      R"({"prompt":"a",})",
      R"({'prompt':'a'})",
      R"({"prompt":"a"/**/})",
      R"({"prompt":"a","prompt":"b"})",
      R"({"prompt":"a","metadata":{"k":1,"k":2}})",
      R"({"prompt":"a","\u0070rompt":"b"})",
      begin + "NaN}",
      begin + "Infinity}",
      begin + "1e400}",
      begin + "01}",
      begin + "0x10}",
      begin + "\"\\ud800\"}",
      begin + "\"\\udc00\\ud800\"}",
      begin + "\"\xff\"}",
      begin + "\"\xc0\x80\"}",
      begin + "\"\xed\xa0\x80\"}",
      begin + "\"a\nb\"}",
      begin + nested(64, "[", "]") + "}",
      begin + nested(100'000, "[", "]") + "}",
      begin + nested(100'000, "{\"a\":", "}") + "}",
      std::string(1'000'000, '['),
      std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", 10),
      std::string("{\"prompt\":\"a\"}\0", 15),
      std::string("\xff\xfe{\0\"\0", 6),
  };
  for (const std::string& body : bodies) {
    std::unique_ptr<RawClient> client;
    const std::string answer = exchange(app, client, post_text("/v1/completions", body));
    EXPECT_EQ(status_of(answer), 400) << body.substr(0, 100) << "\n" << answer;
    expect_typed(answer, body.substr(0, 100));
  }
  EXPECT_EQ(app.service->snapshot().num_accepted, 0);
  std::unique_ptr<RawClient> client;
  const std::string good = R"({"prompt":"a","max_tokens":1})";
  expect_typed(exchange(app, client, post_text("/v1/completions", "\xef\xbb\xbf" + good)), "BOM");
  const std::string packed =
      exchange(app, client, post_text("/v1/completions", good, "Content-Encoding: gzip\r\n"));
  EXPECT_EQ(status_of(packed), 415) << packed;
  EXPECT_EQ(status_of(exchange(app, client, post_text("/v1/completions", good))), 200);
}

// A request whose head has these fields, and the status that it gets before its body is read.
struct Stranger {
  std::string fields;
  int status;
};

void expect_refused(const App& app, const std::vector<Stranger>& strangers) {
  for (const Stranger& stranger : strangers) {
    RawClient client(app.server->port());
    client.send("POST /v1/completions HTTP/1.1\r\n" + stranger.fields +
                "Content-Length: 1000000\r\n\r\n");
    const std::string answer = client.read_answer();
    EXPECT_EQ(status_of(answer), stranger.status) << stranger.fields << answer;
    EXPECT_TRUE(has(answer, "\r\nConnection: close\r\n")) << "the body is not read";
    EXPECT_TRUE(body_of(answer)["error"]["type"].is_string()) << answer;
    EXPECT_FALSE(has(answer, "first-key")) << answer;
  }
  EXPECT_EQ(app.service->snapshot().num_accepted, 0);
}

TEST(Hostile, KeysThatAreWrong) {
  AppOptions options;
  options.gate.keys = {"first-key", "second-key"};
  App app(options);
  app.serve();
  const std::string common = "Host: localhost\r\nContent-Type: application/json\r\n";
  std::vector<Stranger> strangers = {{common, 401}};
  for (const char* key :
       {"", "first-ke", "first-key1", "irst-key", "FIRST-KEY", "first-key second-key", "first-key,",
        "\"first-key\"", "first-keysecond-key"}) {
    strangers.push_back({common + "Authorization: Bearer " + key + "\r\n", 401});
    strangers.push_back({common + "x-api-key: " + key + "\r\n", 401});
  }
  for (const char* value : {"Basic first-key", "first-key", "Bearer", "Digest Bearer first-key",
                            "Bearer\tfirst-key", "Bearer first-key first-key"}) {
    strangers.push_back({common + "Authorization: " + value + "\r\n", 401});
  }
  // Either field may have the key, but not both a wrong one.
  strangers.push_back({common + "x-api-key: wrong\r\nAuthorization: Bearer no\r\n", 401});
  strangers.push_back({common + "x-api-key: \r\nAuthorization: Bearer \r\n", 401});
  // Of two fields with one name none counts.
  strangers.push_back({common + "x-api-key: wrong\r\nx-api-key: first-key\r\n", 400});
  strangers.push_back(
      {common + "Authorization: Bearer no\r\nAuthorization: Bearer first-key\r\n", 400});
  expect_refused(app, strangers);
  EXPECT_EQ(status_of(app.get("/v1/models?key=first-key&api_key=first-key")), 401);
  EXPECT_EQ(status_of(app.get("//v1/models")), 404) << "not open by another spelling";
  for (const char* key : {"Authorization: Bearer second-key\r\n", "X-Api-Key: first-key\r\n"}) {
    RawClient client(app.server->port());
    client.send(post_text("/v1/completions", R"({"prompt":"a","max_tokens":1})", key));
    EXPECT_EQ(status_of(client.read_answer()), 200);
  }
}

TEST(Hostile, PagesAndHostsThatAreForeign) {
  App app;
  app.serve();
  const std::string json = "Content-Type: application/json\r\n";
  std::vector<Stranger> strangers;
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "evil@localhost", "localhost#", ""}) {
    strangers.push_back({"Host: " + std::string(host) + "\r\n" + json, 403});
  }
  for (const char* origin : {"http://evil.example", "https://localhost.evil", "null", "file://",
                             "http://localhost:1", "http://127.0.0.1", "localhost"}) {
    strangers.push_back({"Host: localhost\r\nOrigin: " + std::string(origin) + "\r\n" + json, 403});
  }
  // What a page may send without asking the browser first.
  for (const char* type :
       {"text/plain", "text/plain;application/json", "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x"}) {
    strangers.push_back({"Host: localhost\r\nContent-Type: " + std::string(type) + "\r\n", 415});
  }
  strangers.push_back({"Host: localhost\r\n", 415});
  strangers.push_back({"Host: localhost\r\nHost: evil.example\r\n" + json, 400});
  expect_refused(app, strangers);
}

// A body of 600 KB that would be 131,072 copies of its prompts and biases. Its prompts are too
// long, too, which only their tokens tell: that they are not named shows that there were none.
TEST(Hostile, MoreAnswersThanMayWaitCostNothing) {
  App app;
  app.serve();
  const std::string text(600, 'x');
  Json completion = {{"prompt", std::vector<std::string>(1024, text)}, {"n", 128}};
  for (int id = 0; id < 100; ++id) completion["logit_bias"][std::to_string(id)] = 1;
  const std::string many = testing::post(app, "/v1/completions", completion);
  EXPECT_EQ(status_of(many), 400) << many;
  EXPECT_EQ(body_of(many)["error"]["param"], "n");
  EXPECT_TRUE(has(many, " 131072 answers") && has(many, " 1024 requests")) << many;
  completion["n"] = 1;
  const std::string all = testing::post(app, "/v1/completions", completion);
  EXPECT_TRUE(body_of(all)["error"].contains("context_length")) << "as many as may wait: " << all;
  AppOptions few{.limits = {.max_waiting = 5}};
  App small(few);
  small.serve();
  const Json chat = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"n", 6}};
  const std::string six = testing::post(small, "/v1/chat/completions", chat);
  EXPECT_EQ(status_of(six), 400) << six;
  EXPECT_TRUE(has(six, " 6 answers") && has(six, " 5 requests")) << six;
  EXPECT_EQ(app.service->snapshot().num_accepted + small.service->snapshot().num_accepted, 0);
}

}  // namespace
}  // namespace sluice::server
