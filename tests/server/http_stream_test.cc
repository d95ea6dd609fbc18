// Streams through real sockets: events, silence, clients that read slowly or leave, and the stop.
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "server/http/http_server.h"
#include "server/raw_client.h"

namespace sluice::http {
namespace {

using namespace std::chrono_literals;

const std::string kGetStream = "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n";

// A server whose only route hands the exchange to the test, which answers from its own thread.
struct StreamServer {
  explicit StreamServer(Limits limits = {}) {
    ServerOptions options{.limits = limits};
    options.router.add("GET", "/stream", [this](const Request&, const auto& exchange) {
      exchange->on_gone([this](Gone reason) { gone.set_value(reason); });
      arrived.set_value(exchange);
    });
    options.router.add("GET", "/ok", [](const Request&, const auto& exchange) {
      exchange->answer({.body = "ok"});
    });
    server.emplace(std::move(options));
  }
  std::shared_ptr<Exchange> next() { return arrived.get_future().get(); }
  Gone wait_gone() {
    auto future = gone.get_future();
    EXPECT_EQ(future.wait_for(20s), std::future_status::ready);
    return future.get();
  }

  std::promise<std::shared_ptr<Exchange>> arrived;
  std::promise<Gone> gone;
  std::optional<HttpServer> server;
};

std::unique_ptr<StreamEvent> event(std::string data) {
  return std::make_unique<SseEvent>(std::move(data));
}

TEST(HttpStream, HeadersAndEventsLeaveAtOnce) {
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send(kGetStream);
  const auto exchange = stream.next();
  exchange->begin_stream();
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_TRUE(has(head, "Content-Type: text/event-stream; charset=utf-8\r\n")) << head;
  EXPECT_TRUE(has(head, "Transfer-Encoding: chunked\r\n")) << head;
  exchange->send(event("one"));
  EXPECT_EQ(client.read_until("\n\n\r\n"), "b\r\ndata: one\n\n\r\n");
  exchange->send(event("[DONE]"));
  EXPECT_TRUE(exchange->finish());
  EXPECT_FALSE(exchange->send(event("late")));
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  client.send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(client.read_answer().ends_with("ok")) << "the connection goes on";
}

TEST(HttpStream, Http10EndsWithTheConnection) {
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto exchange = stream.next();
  exchange->begin_stream();
  exchange->send(event("one"));
  exchange->finish();
  const std::string all = client.read_all();
  EXPECT_TRUE(all.ends_with("\r\n\r\ndata: one\n\n")) << all;
  EXPECT_FALSE(has(all, "chunked"));
}

TEST(HttpStream, SilenceIsFilledWithPings) {
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send(kGetStream);
  const auto exchange = stream.next();
  exchange->begin_stream({.ping_interval = 20ms});
  client.read_until("\r\n\r\n");
  EXPECT_EQ(client.read_until("\n\n\r\n"), "8\r\n: ping\n\n\r\n");
  EXPECT_EQ(client.read_until("\n\n\r\n"), "8\r\n: ping\n\n\r\n");
  exchange->finish();
  EXPECT_TRUE(client.read_until("0\r\n\r\n").ends_with("0\r\n\r\n"));
}

TEST(HttpStream, AStreamThatIsGivenUpIsCut) {
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send(kGetStream);
  auto exchange = stream.next();
  stream.arrived = {};
  exchange->begin_stream();
  exchange->send(event("one"));
  exchange.reset();
  const std::string all = client.read_all();
  EXPECT_TRUE(has(all, "data: one")) << all;
  EXPECT_FALSE(all.ends_with("0\r\n\r\n")) << "the client must not take it for complete";
}

TEST(HttpStream, AnEventThatCannotBeWrittenCutsItsStreamOnly) {
  struct Broken : StreamEvent {
    size_t size_bytes() const override { return 1; }
    void render(std::string&) const override { throw std::bad_alloc(); }
  };
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send(kGetStream);
  const auto exchange = stream.next();
  exchange->begin_stream();
  exchange->send(event("one"));
  client.read_until("data: one");
  exchange->send(std::make_unique<Broken>());
  exchange->finish();
  EXPECT_FALSE(client.read_all().ends_with("0\r\n\r\n"));
  EXPECT_TRUE(client.at_end());
  RawClient other(stream.server->port());
  other.send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(other.read_answer().ends_with("ok"));
}

// How a client leaves, and whether the stream has begun.
enum class Leave { kClose, kReset };

TEST(HttpStream, EveryWayToLeaveIsSeen) {
  for (const Leave leave : {Leave::kClose, Leave::kReset}) {
    for (const bool begun : {false, true}) {
      StreamServer stream;
      RawClient client(stream.server->port());
      client.send(kGetStream);
      const auto exchange = stream.next();
      if (begun) {
        exchange->begin_stream();
        client.read_until("\r\n\r\n");
      }
      if (leave == Leave::kClose) client.close_now();
      if (leave == Leave::kReset) client.reset();
      EXPECT_EQ(stream.wait_gone(), Gone::kDisconnected) << begun;
      EXPECT_FALSE(exchange->send(event("x")));
      EXPECT_EQ(exchange->queued_bytes(), 0u);
    }
  }
}

TEST(HttpStream, EarlyBytesAreKeptAndNoDisconnect) {
  StreamServer stream;
  RawClient client(stream.server->port());
  std::string wire = kGetStream;
  for (int i = 0; i < 2000; ++i) wire += "GET /ok HTTP/1.1\r\nHost: a\r\n\r\n";
  ASSERT_TRUE(client.send(wire)) << "more than is kept fits into the system's buffers";
  const auto exchange = stream.next();
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(exchange->answer({.body = "first"}));
  EXPECT_TRUE(client.read_answer().ends_with("first"));
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(client.read_answer().ends_with("ok")) << i;
}

TEST(HttpStream, ADisconnectBehindKeptBytesIsSeen) {
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send(kGetStream + std::string(40'000, 'x'));
  const auto exchange = stream.next();
  client.close_now();
  EXPECT_EQ(stream.wait_gone(), Gone::kDisconnected);
}

// It is sent what every client skips, by which one that has gone is told apart; then its answer.
TEST(HttpStream, AHalfClosedClientIsAnswered) {
  for (const bool is_stream : {false, true}) {
    StreamServer stream;
    RawClient client(stream.server->port());
    client.send(kGetStream);
    const auto exchange = stream.next();
    if (is_stream) {
      exchange->begin_stream();
      client.read_until("\r\n\r\n");
    }
    client.half_close();
    const std::string skipped = client.read_until(is_stream ? "\n\n\r\n" : "\r\n\r\n");
    EXPECT_TRUE(has(skipped, is_stream ? ": ping" : "100 Continue")) << skipped;
    if (is_stream) {
      EXPECT_TRUE(exchange->finish(event("last")));
    } else {
      EXPECT_TRUE(exchange->answer({.body = "whole"}));
    }
    EXPECT_TRUE(has(client.read_all(), is_stream ? "last" : "whole"));
    EXPECT_TRUE(client.at_end());
  }
}

// Before the answer HTTP/1.0 has nothing that a client would skip.
TEST(HttpStream, AHalfClosedClientOfHttp10CountsAsGone) {
  StreamServer stream;
  RawClient client(stream.server->port());
  std::string old = kGetStream;
  old.replace(old.find("HTTP/1.1"), 8, "HTTP/1.0");
  client.send(old);
  const auto exchange = stream.next();
  client.half_close();
  EXPECT_EQ(stream.wait_gone(), Gone::kDisconnected);
}

TEST(HttpStream, ASlowReaderIsCutAtItsBufferAndOthersGoOn) {
  Limits limits;
  limits.client_buffer_bytes = 256 << 10;
  StreamServer stream(limits);
  RawClient slow(stream.server->port(), 4096);
  slow.send(kGetStream);
  const auto exchange = stream.next();
  exchange->begin_stream();
  const std::string data(10'000, 'x');
  size_t most = 0;
  int sent = 0;
  while (exchange->send(event(data)) && ++sent < 10'000) {
    most = std::max(most, exchange->queued_bytes());
    std::this_thread::sleep_for(100us);
  }
  EXPECT_LT(sent, 10'000);
  EXPECT_LE(most, limits.client_buffer_bytes + 2 * data.size()) << "rendered bytes have frames";
  EXPECT_EQ(stream.wait_gone(), Gone::kSlowClient);
  RawClient other(stream.server->port());
  other.send("GET /ok HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(other.read_answer().ends_with("ok"));
}

TEST(HttpStream, AReaderThatStopsIsCutInTime) {
  Limits limits;
  limits.client_stall = 200ms;
  StreamServer stream(limits);
  RawClient slow(stream.server->port(), 4096);
  slow.send(kGetStream);
  const auto exchange = stream.next();
  exchange->begin_stream();
  for (int i = 0; i < 100; ++i) exchange->send(event(std::string(150'000, 'x')));
  EXPECT_EQ(stream.wait_gone(), Gone::kSlowClient);
}

TEST(HttpStream, StopLetsAnswersEnd) {
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send(kGetStream);
  const auto exchange = stream.next();
  exchange->begin_stream();
  client.read_until("\r\n\r\n");
  std::thread stopper([&] { stream.server->stop(20s); });
  exchange->send(event("last"));
  exchange->finish();
  EXPECT_TRUE(client.read_until("0\r\n\r\n").ends_with("0\r\n\r\n"));
  client.close_now();
  stopper.join();
  EXPECT_EQ(stream.server->num_connections(), 0u);
}

TEST(HttpStream, StopCutsWhatDoesNotEndAndExchangesOutliveTheServer) {
  StreamServer stream;
  RawClient client(stream.server->port());
  client.send(kGetStream);
  const auto exchange = stream.next();
  exchange->begin_stream();
  stream.server->stop(10ms);
  EXPECT_EQ(stream.wait_gone(), Gone::kStopped);
  stream.server.reset();
  EXPECT_FALSE(exchange->send(event("x")));
}

}  // namespace
}  // namespace sluice::http
