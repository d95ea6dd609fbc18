// The load client against the server's HTTP layer, whose answers the test makes: what it saw must
// be what was sent, when it was sent.
#include "cli/bench/serve/load_client.h"

#include <future>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "cli/bench/serve/completion.h"
#include "server/http/http_server.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

using namespace std::chrono_literals;
using http::Exchange;

std::unique_ptr<http::StreamEvent> event(std::string data) {
  return std::make_unique<http::SseEvent>(std::move(data));
}

// Routes: /text answers, /echo answers with the body, /stream hands the exchange to the test.
struct Server {
  Server() {
    http::ServerOptions options;
    options.router.add("GET", "/text", [](const http::Request&, const auto& exchange) {
      exchange->answer({.body = "some text"});
    });
    options.router.add("POST", "/echo", [](http::Request request, const auto& exchange) {
      exchange->answer({.body = std::move(request.body)});
    });
    options.router.add("GET", "/stream", [this](const http::Request&, const auto& exchange) {
      exchange->on_gone([this](http::Gone reason) { gone.set_value(reason); });
      arrived.set_value(exchange);
    });
    http.emplace(std::move(options));
    client.emplace(ServerAddress{.port = http->port()});
  }
  // Begins a stream, which the client has asked for.
  std::shared_ptr<Exchange> begin_stream() {
    auto exchange = arrived.get_future().get();
    exchange->begin_stream();
    return exchange;
  }
  // Whether the server saw the client go.
  bool is_left() { return gone.get_future().wait_for(20s) == std::future_status::ready; }

  std::promise<std::shared_ptr<Exchange>> arrived;
  std::promise<http::Gone> gone;
  std::optional<http::HttpServer> http;
  std::optional<LoadClient> client;
};

// Until the text has come.
void wait_for(const LoadRequest& request, const std::string& text) {
  while (request.received().bytes.find(text) == std::string::npos) {
    std::this_thread::sleep_for(1ms);
  }
}

TEST(LoadClient, ReadsAnswersWithALength) {
  Server server;
  EXPECT_EQ(fetch(*server.client, "/text"), "some text");
  std::string body(1 << 20, 'x');
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i % 23);
  const LoadRequest request = server.client->post("/echo", body);
  request.wait();
  const ReceivedAnswer answer = request.received();
  EXPECT_TRUE(answer.is_whole);
  EXPECT_EQ(read_body(answer).text, body);
  EXPECT_GT(server.client->cpu_seconds(), 0);
}

TEST(LoadClient, NotesWhenEachEventCame) {
  Server server;
  const LoadRequest request = server.client->get("/stream");
  const auto exchange = server.begin_stream();
  std::vector<LoadTime> sent;
  for (size_t i = 0; i < 5; ++i) {
    sent.push_back(LoadClock::now());
    exchange->send(event("event " + std::to_string(i)));
    wait_for(request, "event " + std::to_string(i) + "\n\n");
    EXPECT_FALSE(request.received().is_whole);
  }
  exchange->finish();
  request.wait();
  const ReceivedAnswer answer = request.received();
  EXPECT_TRUE(answer.is_whole);
  EXPECT_LE(answer.sent, sent[0]);
  const AnswerBody body = read_body(answer);
  ASSERT_EQ(body.events.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(body.events[i].data, "event " + std::to_string(i));
    EXPECT_GE(body.events[i].time, sent[i]);
    const LoadTime next = i < 4 ? sent[i + 1] : LoadTime::max();
    EXPECT_LE(body.events[i].time, next) << "it was waited for";
  }
}

TEST(LoadClient, AStreamThatIsCutIsNotWhole) {
  Server server;
  const LoadRequest request = server.client->get("/stream");
  {
    const auto exchange = server.begin_stream();
    exchange->send(event("one"));
    server.arrived = {};  // the last owner: an exchange without one is given up
  }
  request.wait();
  EXPECT_FALSE(request.received().is_whole);
  EXPECT_NE(request.received().fault, "");
}

TEST(LoadClient, SaysThatNobodyListens) {
  uint16_t port = 0;
  {
    Server server;
    port = server.http->port();
  }
  LoadClient client({.port = port});
  const LoadRequest request = client.get("/text");
  request.wait();
  EXPECT_NE(request.received().fault, "");
  EXPECT_THROW(fetch(client, "/text"), Error);
}

TEST(LoadClient, EndsWithOpenRequests) {
  Server server;
  const LoadRequest request = server.client->get("/stream");
  const auto exchange = server.begin_stream();
  server.client.reset();
  EXPECT_TRUE(server.is_left());
  EXPECT_FALSE(request.received().is_whole);
}

TEST(ServerUrl, ReadsAddressesAndRefusesTheRest) {
  EXPECT_EQ(parse_server_url("http://127.0.0.1:8000").port, 8000);
  EXPECT_EQ(parse_server_url("http://[::1]:80/").address, "::1");
  EXPECT_EQ(parse_server_url("http://localhost:1").address, "127.0.0.1");
  for (const char* url :
       {"", "127.0.0.1:8000", "http://127.0.0.1", "http://127.0.0.1:x", "http://127.0.0.1:80/v1",
        "http://a.example:80", "http://127.0.0.1:99999", "https://127.0.0.1:80"}) {
    EXPECT_THROW(parse_server_url(url), Error) << url;
  }
}

}  // namespace
}  // namespace sluice::cli
