// EventPublisher: sends events over ZeroMQ as vLLM does, from a thread of its own.
//
// Made by the engine's stations with --kv-events. Batches wait in a queue with a bound; each
// becomes a message of three frames: topic, number (8 bytes, highest first), payload. The newest
// messages are kept, and whoever missed some asks for them over a second socket. Numbers begin with
// 0, so a number that is lower than the one before it tells of a restart. Thread rule: as
// EventSink.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "events/event_sink.h"
#include "events/zmq_library.h"

namespace sluice {

// Endpoints are bound, whatever they are: a router connects.
struct EventPublisherOptions {
  std::string endpoint;                        // tcp://*:5557
  std::optional<std::string> replay_endpoint;  // empty: nothing is kept
  std::string topic;
  int64_t buffer_steps = 10'000;  // messages that are kept
  int64_t send_limit = 100'000;   // messages that wait for one slow reader; then its are lost
  int64_t max_waiting_events = 100'000;  // in the queue before they are sent
};

class EventPublisher final : public EventSink {
 public:
  // Errors: kUnsupported without libzmq; kIo for an endpoint that cannot be bound, by its name.
  explicit EventPublisher(const EventPublisherOptions& options);
  // Sends what waits.
  ~EventPublisher() override;

  bool try_publish(CacheEventBatch& batch) override;
  void replace_waiting(CacheEventBatch batch) override;
  EventCounts counts() const override {
    return {.num_sent = num_sent_, .num_dropped = num_dropped_};
  }
  // First that of the events; then that of the messages that were missed, if there is one.
  std::vector<std::string> endpoints() const override { return endpoints_; }

 private:
  // An eventfd: readable once something has come.
  class Bell {
   public:
    Bell();
    ~Bell();
    void ring() const;
    void silence() const;
    int fd() const { return fd_; }

   private:
    int fd_;
  };

  void bind(ZmqSocket& socket, const std::string& endpoint, const char* option);
  void add(CacheEventBatch&& batch);  // under the mutex
  void run();
  bool send_waiting();
  void send(const CacheEventBatch& batch);
  void answer_replay();

  const EventPublisherOptions options_;
  Bell bell_;

  std::mutex mutex_;
  std::deque<CacheEventBatch> waiting_;  // under the mutex, as the next two
  int64_t num_waiting_events_ = 0;
  bool is_over_ = false;

  std::atomic<int64_t> num_sent_ = 0;
  std::atomic<int64_t> num_dropped_ = 0;
  std::vector<std::string> endpoints_;

  // Of the thread, once it runs.
  ZmqContext context_;
  ZmqSocket publisher_;
  std::optional<ZmqSocket> replay_;
  uint64_t next_number_ = 0;
  std::deque<std::pair<uint64_t, std::string>> sent_;  // the newest, by number

  std::thread thread_;  // the last: it uses all of the above
};

}  // namespace sluice
