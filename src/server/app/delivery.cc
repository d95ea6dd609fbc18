#include "server/app/delivery.h"

#include <utility>

namespace sluice::server {

Delivery::Delivery() : thread_([this] { run(); }) {}

Delivery::~Delivery() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  arrived_.notify_one();
  thread_.join();
}

// The lock is held for a move, so the engine's thread waits for this one for a swap at most.
void Delivery::push(std::shared_ptr<EventReceiver> receiver, size_t choice, RequestEvent&& event) {
  const http::TimePoint now = http::Clock::now();
  bool must_wake = false;
  {
    const std::lock_guard lock(mutex_);
    items_.push_back({std::move(receiver), choice, now, std::move(event)});
    must_wake = std::exchange(is_asleep_, false);
  }
  if (must_wake) arrived_.notify_one();
}

void Delivery::run() {
  std::vector<Item> batch;
  while (next(batch)) {
    for (Item& item : batch) {
      item.receiver->take(item.choice, std::move(item.event), item.time);
    }
    batch.clear();
  }
}

bool Delivery::next(std::vector<Item>& batch) {
  std::unique_lock lock(mutex_);
  while (items_.empty() && !is_ending_) {
    is_asleep_ = true;
    arrived_.wait(lock);
  }
  is_asleep_ = false;
  batch.swap(items_);
  return !batch.empty();
}

}  // namespace sluice::server
