// Pages of other origins: refused as long as none is allowed, then exactly those that are.
#include <gtest/gtest.h>

#include "core/error.h"
#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::has;
using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;

std::string sent(const App& app, const std::string& text) {
  RawClient client(app.server->port());
  client.send(text);
  return client.read_answer();
}

std::string preflight(const std::string& path, const std::string& origin) {
  return "OPTIONS " + path + " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
         "\r\nAccess-Control-Request-Method: POST\r\n"
         "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n";
}

std::string get(const std::string& origin, const std::string& fields = "") {
  return "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin + "\r\n" + fields +
         "\r\n";
}

AppOptions with_origin(std::vector<std::string> keys = {}) {
  AppOptions options;
  options.gate.keys = std::move(keys);
  options.gate.cors_origins = CorsOrigins({"https://app.example", "http://localhost:3000"});
  return options;
}

TEST(AppCors, WithoutOriginsNoPageIsAnswered) {
  App app;
  app.serve();
  EXPECT_EQ(status_of(sent(app, preflight("/v1/models", "https://app.example"))), 405);
  const std::string answer = sent(app, get("https://app.example"));
  EXPECT_EQ(status_of(answer), 403) << answer;
  EXPECT_FALSE(has(answer, "Access-Control")) << answer;
  EXPECT_FALSE(has(sent(app, get("http://localhost")), "Vary")) << "the server's own page";
}

TEST(AppCors, PagesThatAreAllowedMayReadAnswers) {
  App app(with_origin());
  app.serve();
  for (const char* origin : {"https://app.example", "HTTPS://App.Example"}) {
    const std::string asked = sent(app, preflight("/v1/chat/completions", origin));
    EXPECT_EQ(status_of(asked), 200) << asked;
    EXPECT_TRUE(has(asked, "Access-Control-Allow-Origin: " + std::string(origin) + "\r\n"))
        << asked;
    EXPECT_TRUE(has(asked, "Allow-Headers: authorization,x-stainless-os\r\n")) << asked;
    EXPECT_TRUE(has(asked, "Vary: Origin\r\n")) << asked;
    const std::string answer = sent(app, get(origin));
    EXPECT_EQ(status_of(answer), 200) << answer;
    EXPECT_TRUE(has(answer, "Access-Control-Allow-Origin: ")) << answer;
  }
  // Streams and errors, too: a page could else not read why it was refused.
  RawClient client(app.server->port());
  const std::string origin = "Origin: http://localhost:3000\r\n";
  client.send(testing::post_text("/v1/completions",
                                 R"({"prompt": "a", "max_tokens": 1, "stream": true})", origin));
  EXPECT_TRUE(
      has(client.read_until("\r\n\r\n"), "Access-Control-Allow-Origin: http://localhost:3000"));
  EXPECT_TRUE(testing::ends_done(client));
  client.send(testing::post_text("/v1/completions", "{}", origin));
  EXPECT_TRUE(has(client.read_answer(), "Access-Control-Allow-Origin: "));
  client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string plain = client.read_answer();
  EXPECT_FALSE(has(plain, "Access-Control")) << "kept from the request before: " << plain;
}

TEST(AppCors, OtherPagesAreRefusedAsBefore) {
  App app(with_origin());
  app.serve();
  for (const char* origin :
       {"https://evil.example", "http://app.example", "https://app.example:444",
        "https://app.example.evil", "null", "*", ""}) {
    for (const std::string& text : {get(origin), preflight("/v1/models", origin)}) {
      const std::string answer = sent(app, text);
      EXPECT_EQ(status_of(answer), 403) << text << answer;
      EXPECT_FALSE(has(answer, "Access-Control")) << answer;
    }
  }
  EXPECT_EQ(status_of(sent(app, preflight("/none", "https://app.example"))), 404);
}

// What a browser asks before, it asks without the key; the request itself needs it.
TEST(AppCors, AllowedPagesNeedTheKey) {
  App app(with_origin({"k"}));
  app.serve();
  EXPECT_EQ(status_of(sent(app, preflight("/v1/models", "https://app.example"))), 200);
  EXPECT_EQ(status_of(sent(app, get("https://app.example"))), 401);
  EXPECT_EQ(status_of(sent(app, get("https://app.example", "Authorization: Bearer k\r\n"))), 200);
}

TEST(AppCors, TakesOriginsOnly) {
  for (const char* text : {"https://[::1]:8000", "app://obsidian.md", "chrome-extension://abc",
                           "vscode-webview://x", "tauri://localhost", "a1+.-://b"}) {
    EXPECT_NO_THROW(CorsOrigins({text})) << text;
  }
  for (const char* text : {"*",
                           "app.example",
                           "https://",
                           "https://app.example/",
                           "null",
                           "",
                           "https://*.example",
                           "https://a b",
                           "https://u@a",
                           "://a",
                           "1a://b",
                           "-a://b",
                           "a_b://c",
                           "a b://c",
                           "App://a",
                           "*://a",
                           "app:a",
                           "file://",
                           "app://null/",
                           "app://a://b"}) {
    EXPECT_THROW(CorsOrigins({text}), Error) << text;
  }
}

// Apps that show their pages in a browser of their own.
TEST(AppCors, OriginsMayHaveAnyScheme) {
  AppOptions options;
  options.gate.cors_origins = CorsOrigins({"app://obsidian.md"});
  App app(options);
  app.serve();
  const std::string answer = sent(app, get("app://obsidian.md"));
  EXPECT_EQ(status_of(answer), 200);
  EXPECT_TRUE(has(answer, "Access-Control-Allow-Origin: app://obsidian.md\r\n")) << answer;
  EXPECT_EQ(status_of(sent(app, get("https://obsidian.md"))), 403);
  EXPECT_EQ(status_of(sent(app, get("app://other.md"))), 403);
}

}  // namespace
}  // namespace sluice::server
