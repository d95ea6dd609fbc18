// Many clients at once: streams from several threads whose clients stay, leave or read slowly.
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/http/http_server.h"
#include "server/raw_client.h"

namespace sluice::http {
namespace {

using namespace std::chrono_literals;

const std::string kFastGet = "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n";
const std::string kSlowGet = "GET /stream HTTP/1.1\r\nHost: a\r\nX-Request-Id: slow\r\n\r\n";

// Streams of numbered events, sent in turn by the test as an engine's thread would.
class Producer {
 public:
  explicit Producer(Limits limits = {}) {
    ServerOptions options{.limits = limits};
    options.router.add("GET", "/stream", [this](const Request&, const auto& exchange) {
      exchange->on_gone([this](Gone reason) { ++(reason == Gone::kSlowClient ? slow : left); });
      exchange->begin_stream();
      const std::lock_guard lock(mutex_);
      exchanges_.push_back(exchange);
    });
    server.emplace(std::move(options));
  }
  std::vector<std::shared_ptr<Exchange>> wait_for(size_t count) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (exchanges_.size() >= count) return std::exchange(exchanges_, {});
      }
      std::this_thread::sleep_for(1ms);
    }
  }

  std::atomic<int> slow{0};
  std::atomic<int> left{0};
  std::optional<HttpServer> server;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> exchanges_;
};

TEST(HttpLoad, AClientOfOneByteASecondDisturbsNobody) {
  Limits limits;
  limits.client_buffer_bytes = 64 << 10;
  Producer producer(limits);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 32; ++i) {
    clients.push_back(std::make_unique<RawClient>(producer.server->port(), i == 0 ? 2048 : 0));
    clients.back()->send(i == 0 ? kSlowGet : kFastGet);
  }
  const auto exchanges = producer.wait_for(32);
  std::atomic<bool> done{false};
  std::thread slow([&] {
    while (!done) {
      clients[0]->read_byte();
      std::this_thread::sleep_for(1s);
    }
  });
  std::vector<std::thread> readers;
  std::atomic<int> complete{0};
  for (int i = 1; i < 32; ++i) {
    readers.emplace_back([&, i] {
      clients[i]->read_until("\r\n\r\n");
      std::string line = clients[i]->read_until("\r\n");
      while (line != "0\r\n" && !line.empty()) line = clients[i]->read_until("\r\n");
      complete += line == "0\r\n";
    });
  }
  // As many events as the buffers of the system hold for the client that does not read. The test
  // waits for the others, as an engine's pace would.
  const std::string data(10'000, 'x');
  for (int i = 0; i < 5'000 && producer.slow == 0; ++i) {
    for (const auto& exchange : exchanges) {
      exchange->send(std::make_unique<SseEvent>(data));
    }
    for (const auto& exchange : exchanges) {
      if (exchange->request_id() == "slow") continue;
      while (exchange->queued_bytes() > 2 * data.size()) std::this_thread::sleep_for(1ms);
    }
  }
  for (const auto& exchange : exchanges) exchange->finish();
  for (std::thread& reader : readers) reader.join();
  done = true;
  slow.join();
  EXPECT_EQ(complete, 31);
  EXPECT_EQ(producer.slow, 1);
  EXPECT_EQ(producer.left, 0);
}

TEST(HttpLoad, ClientsThatLeaveAtAnyTimeLeaveNothing) {
  Producer producer;
  constexpr int kClients = 60;
  std::vector<std::thread> clients;
  std::atomic<int> complete{0};
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      RawClient client(producer.server->port());
      client.send(kFastGet);
      if (i % 3 == 0) {
        complete += client.read_until("0\r\n\r\n").ends_with("0\r\n\r\n");
      } else {
        client.read_until("data: " + std::to_string(i % 7));
        i % 3 == 1 ? client.reset() : client.close_now();
      }
    });
  }
  const auto exchanges = producer.wait_for(kClients);
  std::vector<std::thread> senders;
  for (int part = 0; part < 3; ++part) {
    senders.emplace_back([&, part] {
      for (int event = 0; event < 200; ++event) {
        for (int i = part; i < kClients; i += 3) {
          exchanges[i]->send(std::make_unique<SseEvent>(std::to_string(event)));
        }
        std::this_thread::sleep_for(1ms);
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  // Those who leave have read their event and are gone before the streams end.
  while (producer.left < kClients * 2 / 3) std::this_thread::sleep_for(1ms);
  for (const auto& exchange : exchanges) exchange->finish();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(complete, kClients / 3);
  EXPECT_EQ(producer.left, kClients * 2 / 3);
  while (producer.server->num_connections() > 0) std::this_thread::sleep_for(1ms);
  for (const auto& exchange : exchanges) EXPECT_EQ(exchange->queued_bytes(), 0u);
}

}  // namespace
}  // namespace sluice::http
