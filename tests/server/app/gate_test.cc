// Which requests the gate lets through, alone and in front of a server.
#include <gtest/gtest.h>

#include "core/error.h"
#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::Field;
using http::Request;
using http::status_of;

// 0: let through.
int checked(const Gate& gate, std::vector<Field> fields, std::string path = "/v1/models",
            std::string method = "GET") {
  const auto fault = gate.check(
      Request{.method = std::move(method), .path = std::move(path), .fields = std::move(fields)});
  return fault ? fault->status : 0;
}

std::string failure_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Gate, AsksForAKey) {
  const Gate gate({.keys = {"one-secret", "two"}});
  const auto with = [&](const char* name, const char* value) {
    return checked(gate, {{"Host", "any.example"}, {name, value}});
  };
  EXPECT_EQ(checked(gate, {{"Host", "any.example"}}), 401);
  EXPECT_EQ(with("Authorization", "Bearer one-secret"), 0);
  EXPECT_EQ(with("Authorization", "Bearer two"), 0) << "any key of the list";
  EXPECT_EQ(with("authorization", "bEARER two"), 0) << "the scheme in any case";
  EXPECT_EQ(with("x-api-key", "one-secret"), 0);
  for (const char* wrong : {"Bearer one-secre", "Bearer one-secrets", "Bearer ", "Bearer", "",
                            "Bearer ONE-SECRET", "Basic one-secret", "one-secret", "Bearertwo"}) {
    EXPECT_EQ(with("Authorization", wrong), 401) << wrong;
  }
  EXPECT_EQ(with("x-api-key", "one-secre"), 401);
  EXPECT_EQ(with("x-api-key", ""), 401);
}

// Clients send a stale or an empty x-api-key beside the key that they were given, or the reverse:
// a caller who knows a key is let in, whatever else the request has.
TEST(Gate, TakesAKeyFromEitherField) {
  const Gate gate({.keys = {"one-secret", "two"}});
  const auto with = [&](const char* field, const char* bearer) {
    return checked(gate, {{"x-api-key", field}, {"Authorization", bearer}});
  };
  for (const char* other : {"", "stale"}) {
    EXPECT_EQ(with(other, "Bearer two"), 0) << other;
    EXPECT_EQ(with("two", other), 0) << other;
    EXPECT_EQ(with("two", "Bearer stale"), 0);
    EXPECT_EQ(with(other, "Bearer stale"), 401) << other;
    EXPECT_EQ(with(other, ""), 401) << other;
  }
  EXPECT_EQ(with("one-secret", "Bearer two"), 0);
}

// A proxy before the server may take the other one.
TEST(Gate, RefusesTwoKeysInOneField) {
  for (const Gate& gate : {Gate({.keys = {"two"}}), Gate(GateOptions{})}) {
    for (const char* name : {"Authorization", "x-api-key"}) {
      EXPECT_EQ(checked(gate, {{name, "Bearer two"}, {name, "Bearer two"}}), 400) << name;
    }
  }
}

// The first two only say how the server is; another path, however it is written, needs the key.
TEST(Gate, OpensPathsThatSayHowTheServerIs) {
  const Gate local({.keys = {"k"}}), remote({.keys = {"k"}, .is_local = false});
  for (const char* path : {"/health", "/live", "/ping", "/version", "/openapi.json"}) {
    EXPECT_EQ(checked(local, {}, path), 0) << path;
    EXPECT_EQ(checked(remote, {}, path), 0) << path;
  }
  EXPECT_EQ(checked(local, {}, "/metrics"), 0);
  EXPECT_EQ(checked(remote, {}, "/metrics"), 401);
  EXPECT_EQ(checked(remote, {{"x-api-key", "k"}}, "/metrics"), 0);
  for (const char* path : {"/load", "/tokenize", "/healthy", "/health/", "/v1/models"}) {
    EXPECT_EQ(checked(local, {}, path), 401) << path;
  }
}

// A page can let a name of its own point to this machine; a name cannot be chosen with keys.
TEST(Gate, WithoutKeysTakesHostsOfThisMachine) {
  const Gate gate({.allowed_hosts = {"box.example"}});
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]",
                           "192.168.1.7", "box.example", "BOX.example:80"}) {
    EXPECT_EQ(checked(gate, {{"Host", host}}), 0) << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "",
                           "evil.example:8000", "box.example.evil", "[evil]", "localhost]:80"}) {
    EXPECT_EQ(checked(gate, {{"Host", host}}), 403) << host;
    EXPECT_EQ(checked(Gate({.keys = {"k"}}), {{"Host", host}, {"x-api-key", "k"}}), 0) << host;
  }
}

TEST(Gate, RefusesForeignPages) {
  for (const bool has_key : {false, true}) {
    const Gate gate({.keys = has_key ? std::vector<std::string>{"k"} : std::vector<std::string>{}});
    const auto from = [&](const char* origin) {
      return checked(gate, {{"Host", "localhost:8000"}, {"Origin", origin}, {"x-api-key", "k"}});
    };
    EXPECT_EQ(from("http://localhost:8000"), 0);
    EXPECT_EQ(from("https://LOCALHOST:8000"), 0);
    for (const char* origin :
         {"http://evil.example", "null", "http://localhost", "", "http://localhost:8001",
          "http://localhost:8000.evil.example", "localhost:8000"}) {
      EXPECT_EQ(from(origin), 403) << origin;
    }
  }
}

// What a page can post without asking has another type.
TEST(Gate, TakesPostsOfJsonOnly) {
  const Gate gate({});
  const auto posted = [&](const char* type) {
    return checked(gate, {{"Host", "localhost"}, {"Content-Type", type}}, "/tokenize", "POST");
  };
  EXPECT_EQ(posted("application/json"), 0);
  EXPECT_EQ(posted("Application/JSON ; charset=utf-8"), 0);
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "", ";", "multipart/form-data",
        "application/jsonx", "text/plain; application/json"}) {
    EXPECT_EQ(posted(type), 415) << type;
  }
  EXPECT_EQ(checked(gate, {{"Host", "localhost"}}, "/tokenize", "POST"), 415);
}

TEST(Gate, ReadsKeysByLine) {
  using Keys = std::vector<std::string>;
  EXPECT_EQ(parse_keys("a\n\nb\r\n~!", "f"), (Keys{"a", "b", "~!"}));
  EXPECT_EQ(parse_keys(std::string(512, 'k'), "f"), Keys{std::string(512, 'k')});
  for (const std::string& text :
       {std::string(), std::string("\n\r\n"), std::string("a b"), std::string("a\t"),
        std::string("k\xc3\xa4"), std::string(513, 'k'), std::string("a\0b", 3)}) {
    const std::string failure = failure_of([&] { parse_keys(text, "keys.txt"); });
    EXPECT_TRUE(http::has(failure, "keys.txt")) << text << ": " << failure;
  }
  const std::string failure = failure_of([] { parse_keys("good\nbad secret\n", "f"); });
  EXPECT_TRUE(http::has(failure, "key 2")) << failure;
  EXPECT_FALSE(http::has(failure, "secret")) << "keys are not for logs: " << failure;
}

TEST(Gate, KnowsAddressesOfThisMachine) {
  for (const char* address : {"127.0.0.1", "127.8.8.8", "::1"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "192.168.0.1", "localhost", ""}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
  EXPECT_EQ(host_without_port("a:1"), "a");
  EXPECT_EQ(host_without_port("[::1]:8000"), "[::1]");
  EXPECT_EQ(host_without_port("[::1]"), "[::1]");
}

TEST(GateOfServer, RefusesToBeOpenToOthersWithoutKeys) {
  SluiceServerOptions options{.address = "0.0.0.0", .port = 0, .model_directory = "a/model/"};
  const std::string failure = failure_of([&] { SluiceServer(options, false); });
  EXPECT_TRUE(http::has(failure, "--api-key-file")) << failure;
  SluiceServer insisted(options, true);
  options.gate.keys = {"k"};
  SluiceServer keyed(options, false);
  EXPECT_EQ(keyed.state().names(), std::vector<std::string>{"model"});
  http::RawClient client(keyed.port());
  client.send("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(status_of(client.read_answer()), 401) << "open where others reach it";
}

// A name is no address, with or without a key.
TEST(GateOfServer, SaysThatANameIsNoAddress) {
  const SluiceServerOptions options{.address = "localhost", .port = 0};
  const std::string failure = failure_of([&] { SluiceServer(options, false); });
  EXPECT_TRUE(http::has(failure, "not an IP address")) << failure;
}

TEST(GateOfServer, IsAskedBeforeAnyRoute) {
  testing::App app({.gate = {.keys = {"k"}}});
  const std::string refusal = app.get("/v1/models");
  EXPECT_EQ(status_of(refusal), 401);
  EXPECT_TRUE(http::has(refusal, "\r\nx-should-retry: false\r\n")) << refusal;
  EXPECT_EQ(status_of(app.get("/metrics")), 200);
  http::RawClient client(app.server->port());
  client.send(testing::post_text("/tokenize", "{}", "Authorization: Bearer k\r\n"));
  EXPECT_EQ(status_of(client.read_answer()), 503) << "let through, to a server without a model";
}

}  // namespace
}  // namespace sluice::server
