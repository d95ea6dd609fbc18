// The wire: subscribers and askers of libzmq against a publisher. Without libzmq nothing is tested
// but the error.
#include "events/event_publisher.h"

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "events/event_payload.h"
#include "io/json_type.h"

// ThreadSanitizer does not see into libzmq, which is not built with it: what its calls of libc do
// is left out. The publisher's own code is checked.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libzmq.so\n"; }

namespace sluice {
namespace {

using Frames = std::vector<std::string>;
using Json = nlohmann::json;
using namespace std::string_literals;

constexpr std::chrono::seconds kSoon{60};

CacheEventBatch batch_of(uint64_t hash, int32_t num_tokens = 2) {
  return {
      .time_s = 1,
      .events = {BlocksStored{.hashes = {hash},
                              .token_ids = std::vector<int32_t>(static_cast<size_t>(num_tokens), 7),
                              .block_tokens = num_tokens}}};
}

uint64_t hash_in(const std::string& payload) {
  return Json::from_msgpack(payload).at(1).at(0).at("block_hashes").at(0).get<uint64_t>();
}

uint64_t number_in(const std::string& bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

// The next message, or none if it does not come soon.
Frames receive(ZmqSocket& socket, std::chrono::milliseconds limit = kSoon) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    Frames frames = socket.receive();
    if (!frames.empty()) return frames;
    ZmqReady::wait(&socket, -1, 10);
  }
  return {};
}

class Publishing : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_zmq()) GTEST_SKIP() << "no libzmq";
    context_ = std::make_unique<ZmqContext>();
  }

  void publish(EventPublisherOptions options = {}) {
    options.endpoint = options.replay_endpoint.emplace("tcp://127.0.0.1:*");
    publisher_ = std::make_unique<EventPublisher>(options);
  }
  void send(CacheEventBatch batch) { ASSERT_TRUE(publisher_->try_publish(batch)); }

  // A subscriber that has got its first message: from then on it misses none.
  std::unique_ptr<ZmqSocket> subscriber(const std::string& topic = "") {
    auto socket = std::make_unique<ZmqSocket>(*context_, ZmqKind::kSub);
    socket->set(ZmqOption::kReceiveLimit, 0);
    socket->subscribe(topic);
    socket->connect(publisher_->endpoints().at(0));
    const auto end = std::chrono::steady_clock::now() + kSoon;
    while (std::chrono::steady_clock::now() < end) {
      send(batch_of(kProbe));
      ++num_probes_;
      if (!receive(*socket, std::chrono::milliseconds(20)).empty()) break;
    }
    return socket;
  }
  // The next message that is no probe.
  static Frames next(ZmqSocket& socket) {
    Frames frames = receive(socket);
    while (frames.size() == 3 && hash_in(frames[2]) == kProbe) frames = receive(socket);
    return frames;
  }

  std::unique_ptr<ZmqSocket> asker() {
    auto socket = std::make_unique<ZmqSocket>(*context_, ZmqKind::kDealer);
    socket->set(ZmqOption::kLinger, 0);
    socket->connect(publisher_->endpoints().at(1));
    return socket;
  }
  static void ask(ZmqSocket& socket, const std::string& first) {
    const std::array<std::string_view, 2> frames = {"", first};
    socket.send(frames);
  }
  // The messages of a replay, without the one that ends it.
  static std::vector<Frames> replayed(ZmqSocket& socket) {
    std::vector<Frames> messages;
    while (true) {
      Frames frames = receive(socket);
      if (frames.size() != 3 || frames[0] != "") return {};
      if (frames[1] == "\xff\xff\xff\xff\xff\xff\xff\xff"s) {
        EXPECT_EQ(frames[2], "");
        return messages;
      }
      messages.push_back(std::move(frames));
    }
  }

  // Waits until as many events are sent or dropped.
  EventCounts counted(int64_t num_events) {
    const auto end = std::chrono::steady_clock::now() + kSoon;
    EventCounts counts = publisher_->counts();
    while (counts.num_sent + counts.num_dropped < num_events &&
           std::chrono::steady_clock::now() < end) {
      counts = publisher_->counts();
    }
    return counts;
  }

  static constexpr uint64_t kProbe = 1;
  int64_t num_probes_ = 0;

  std::unique_ptr<ZmqContext> context_;
  std::unique_ptr<EventPublisher> publisher_;
};

TEST_F(Publishing, SendsTopicNumberAndPayload) {
  publish({.topic = "kv@pod@model"});
  const auto socket = subscriber("kv@pod");
  for (uint64_t hash = 100; hash < 110; ++hash) send(batch_of(hash));
  uint64_t number = 0;
  for (uint64_t hash = 100; hash < 110; ++hash) {
    const Frames frames = next(*socket);
    ASSERT_EQ(frames.size(), 3U);
    EXPECT_EQ(frames[0], "kv@pod@model");
    ASSERT_EQ(frames[1].size(), 8U);
    if (hash > 100) {
      EXPECT_EQ(number_in(frames[1]), number + 1) << "no gap";
    }
    number = number_in(frames[1]);
    EXPECT_EQ(frames[2], encode_events(batch_of(hash)));
  }
  EXPECT_GE(publisher_->counts().num_sent, 10);
  EXPECT_EQ(publisher_->counts().num_dropped, 0);
}

TEST_F(Publishing, ReplaysWhatItKeeps) {
  publish({.buffer_steps = 5});
  const auto socket = subscriber();
  for (uint64_t hash = 100; hash < 110; ++hash) send(batch_of(hash));
  std::vector<Frames> live;
  for (int i = 0; i < 10; ++i) live.push_back(next(*socket));
  const auto client = asker();
  ask(*client, std::string(8, '\0'));
  const std::vector<Frames> all = replayed(*client);
  ASSERT_EQ(all.size(), 5U) << "the newest";
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i][1], live[5 + i][1]) << "the number";
    EXPECT_EQ(all[i][2], live[5 + i][2]) << "the payload";
  }
  ask(*client, live[8][1]);
  const std::vector<Frames> two = replayed(*client);
  ASSERT_EQ(two.size(), 2U) << "from this number on";
  EXPECT_EQ(two[0][1], live[8][1]);
  ask(*client, std::string(8, '\x7f'));
  EXPECT_TRUE(replayed(*client).empty()) << "numbers that do not exist yet";
}

// What is no request gets no answer, and the next one does.
TEST_F(Publishing, IgnoresWhatIsNoRequest) {
  publish();
  const auto socket = subscriber();
  const auto client = asker();
  const std::array<std::string_view, 1> alone = {"12345678"};
  client->send(alone);
  const std::array<std::string_view, 3> more = {"", "12345678", "x"};
  client->send(more);
  ask(*client, "123456789");
  const std::array<std::string_view, 2> no_delimiter = {"x", "12345678"};
  client->send(no_delimiter);
  ask(*client, std::string(8, '\0'));
  EXPECT_FALSE(replayed(*client).empty());
  EXPECT_TRUE(receive(*client, std::chrono::milliseconds(50)).empty());
}

// Payloads take longer to make than batches to add, so the queue fills. What is dropped is counted,
// and what comes in its place is the next message.
TEST_F(Publishing, HasABoundAndSaysWhatItDrops) {
  publish({.max_waiting_events = 4});
  const auto socket = subscriber();
  counted(num_probes_);
  constexpr int32_t kTokens = 100'000;
  int64_t num_added = 0;
  CacheEventBatch batch = batch_of(2, kTokens);
  while (publisher_->try_publish(batch)) {
    ++num_added;
    batch = batch_of(2, kTokens);
  }
  publisher_->replace_waiting({.time_s = 2, .events = {AllBlocksCleared{}, AllBlocksCleared{}}});
  const std::string cleared =
      encode_events({.time_s = 2, .events = {AllBlocksCleared{}, AllBlocksCleared{}}});
  Frames frames;
  int64_t num_received = 0;
  uint64_t number = 0;
  do {
    if (num_received++ > 0) number = number_in(frames.at(1));
    frames = receive(*socket);
    ASSERT_EQ(frames.size(), 3U) << "the subscriber gets the end";
    if (num_received > 1) {
      EXPECT_EQ(number_in(frames[1]), number + 1) << "no gap";
    }
  } while (frames[2] != cleared);
  const int64_t num_events = num_probes_ + num_added + 2;
  const EventCounts counts = counted(num_events);
  EXPECT_GT(counts.num_dropped, 0);
  EXPECT_EQ(counts.num_sent + counts.num_dropped, num_events) << "every event is counted once";
}

// Events from one thread, counts and replays from others, and an end in the middle of all.
TEST_F(Publishing, IsCalledFromSeveralThreads) {
  publish({.max_waiting_events = 8});
  const auto socket = subscriber();
  std::thread engine([this] {
    for (uint64_t hash = 100; hash < 600; ++hash) {
      CacheEventBatch batch = batch_of(hash);
      if (!publisher_->try_publish(batch)) publisher_->replace_waiting(std::move(batch));
    }
  });
  std::thread reader([this] {
    for (int i = 0; i < 500; ++i) {
      const EventCounts counts = publisher_->counts();
      EXPECT_LE(counts.num_dropped, 500);
    }
  });
  const auto client = asker();
  for (int i = 0; i < 20; ++i) {
    ask(*client, std::string(8, '\0'));
    EXPECT_FALSE(replayed(*client).empty());
  }
  engine.join();
  reader.join();
  publisher_.reset();
  Frames last;
  for (Frames frames = next(*socket); !frames.empty();
       frames = receive(*socket, std::chrono::milliseconds(200))) {
    last = std::move(frames);
  }
  ASSERT_EQ(last.size(), 3U);
  EXPECT_EQ(hash_in(last[2]), 599U) << "what waits at the end is sent";
}

TEST_F(Publishing, NamesAnEndpointThatCannotBeBound) {
  publish();
  const auto message = [](const EventPublisherOptions& options) {
    try {
      EventPublisher other(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      return error.message();
    }
    return "no error"s;
  };
  const std::string taken = publisher_->endpoints().at(0);
  const std::string text = message({.endpoint = taken});
  EXPECT_NE(text.find("kv_events is '" + taken + "'"), text.npos) << text;
  EXPECT_NE(text.find("Address already in use"), text.npos) << text;
  const std::string replay = message({.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = taken});
  EXPECT_NE(replay.find("kv_events_replay is '" + taken + "'"), replay.npos) << replay;
  EXPECT_NE(message({.endpoint = "5557"}).find("Invalid argument"), std::string::npos);
}

TEST(ZmqLibrary, IsNamedWhereItIsMissing) {
  if (has_zmq()) GTEST_SKIP() << "libzmq is here";
  try {
    ZmqContext context;
    FAIL() << "a context without a library";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("libzmq5"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace sluice
