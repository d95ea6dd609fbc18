#include "server/http/outbox.h"

#include <utility>

namespace sluice::http {

Outbox::Outbox(size_t max_bytes, std::function<void()> wake)
    : max_bytes_(max_bytes), wake_(std::move(wake)) {}

bool Outbox::answer(Answer answer) {
  {
    const std::lock_guard lock(mutex_);
    if (closed() || phase_ != Phase::kWaiting) return false;
    phase_ = Phase::kAnswered;
    answer_ = std::move(answer);
  }
  wake_();
  return true;
}

bool Outbox::begin_stream(StreamStart start) {
  {
    const std::lock_guard lock(mutex_);
    if (closed() || phase_ != Phase::kWaiting) return false;
    phase_ = Phase::kStreaming;
    start_ = std::move(start);
  }
  wake_();
  return true;
}

bool Outbox::send(std::unique_ptr<StreamEvent> event) {
  bool was_empty = false;
  bool kept = true;
  {
    const std::lock_guard lock(mutex_);
    if (closed() || phase_ != Phase::kStreaming) return false;
    was_empty = events_.empty();
    kept = add(std::move(event));
  }
  // The connection was woken for the events that already waited.
  if (was_empty || !kept) wake_();
  return kept;
}

bool Outbox::finish(std::unique_ptr<StreamEvent> last) {
  bool kept = true;
  {
    const std::lock_guard lock(mutex_);
    if (closed() || phase_ != Phase::kStreaming) return false;
    kept = last == nullptr || add(std::move(last));
    if (kept) phase_ = Phase::kFinished;
  }
  wake_();
  return kept;
}

bool Outbox::is_unanswered() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kWaiting;
}

void Outbox::abandon() {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kStreaming) return;
    phase_ = Phase::kFinished;
    cut_ = true;
  }
  wake_();
}

void Outbox::on_gone(std::function<void(Gone)> callback) {
  Gone gone{};
  {
    const std::lock_guard lock(mutex_);
    if (complete()) return;
    if (!gone_) {
      callback_ = std::move(callback);
      return;
    }
    gone = *gone_;
  }
  callback(gone);
}

void Outbox::on_late(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (complete() || gone_) return;
    if (!is_late_) {
      late_callback_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Outbox::expire() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    is_late_ = true;
    if (complete() || gone_) return;
    callback = std::exchange(late_callback_, nullptr);
  }
  if (callback) callback();
}

Outbox::Batch Outbox::take(size_t max_bytes) {
  const std::lock_guard lock(mutex_);
  Batch batch;
  if (closed()) return batch;
  batch.answer = std::exchange(answer_, std::nullopt);
  batch.start = std::exchange(start_, std::nullopt);
  size_t taken = 0;
  while (!events_.empty() && taken < max_bytes) {
    taken += events_.front()->size_bytes();
    batch.events.push_back(std::move(events_.front()));
    events_.pop_front();
  }
  event_bytes_ -= taken;
  batch.finished = complete() && events_.empty();
  batch.cut = batch.finished && cut_;
  return batch;
}

void Outbox::set_in_flight(size_t bytes) {
  const std::lock_guard lock(mutex_);
  in_flight_bytes_ = bytes;
}

bool Outbox::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

void Outbox::lose(Gone reason) {
  std::function<void(Gone)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    gone_ = reason;
    callback = std::exchange(callback_, nullptr);
    if (complete()) callback = nullptr;
    drop_events();
    in_flight_bytes_ = 0;
  }
  if (callback) callback(reason);
}

size_t Outbox::queued_bytes() const {
  const std::lock_guard lock(mutex_);
  return event_bytes_ + in_flight_bytes_;
}

bool Outbox::add(std::unique_ptr<StreamEvent> event) {
  const size_t last_bytes = events_.empty() ? 0 : events_.back()->size_bytes();
  if (!events_.empty() && events_.back()->absorb(*event)) {
    event_bytes_ += events_.back()->size_bytes() - last_bytes;
  } else {
    event_bytes_ += event->size_bytes();
    events_.push_back(std::move(event));
  }
  if (event_bytes_ + in_flight_bytes_ <= max_bytes_) return true;
  overflowed_ = true;
  drop_events();
  return false;
}

void Outbox::drop_events() {
  events_.clear();
  event_bytes_ = 0;
}

}  // namespace sluice::http
