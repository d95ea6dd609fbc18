// Delivery: the thread that takes the events of all requests over from the engine's thread.
//
// What an event costs is paid here: the locks of its stream, histograms, waking a connection. The
// engine's thread pays for a move into a list, and for a wake if this thread sleeps, which is once
// for all events of a step. Used by Generation. Thread rule: push from any thread; receivers are
// called on the thread of the delivery; one thread makes and destroys it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/limits.h"
#include "service/request_event.h"

namespace sluice::server {

class EventReceiver {
 public:
  virtual ~EventReceiver() = default;
  // `time`: when it was pushed. Events of all requests wait for the call; it must not block.
  virtual void take(size_t choice, RequestEvent event, http::TimePoint time) noexcept = 0;
};

class Delivery {
 public:
  Delivery();
  // Delivers what was pushed before. REQUIRES: nothing is pushed any more.
  ~Delivery();
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // Events are received in the order of the calls, each once. The receiver lives until then. The
  // list has no limit: it grows by what the engine makes while this thread waits for a core.
  void push(std::shared_ptr<EventReceiver> receiver, size_t choice, RequestEvent&& event);

 private:
  struct Item {
    std::shared_ptr<EventReceiver> receiver;
    size_t choice;
    http::TimePoint time;
    RequestEvent event;
  };
  void run();
  // Waits for items; false once nothing will come. Swaps them with the empty `batch`, so that both
  // lists keep their memory.
  bool next(std::vector<Item>& batch);

  std::mutex mutex_;  // of all below but the thread; held for a move or a swap
  std::condition_variable arrived_;
  std::vector<Item> items_;
  bool is_asleep_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace sluice::server
