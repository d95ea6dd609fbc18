// Signalling, waiting for and reusing cells. Reuse must not order two streams.
#include "device/cpu/cpu_event.h"

#include "device/host/waiting.h"

namespace sluice {

void signal_cell(EventCell& cell, const Error* error) {
  if (error != nullptr) cell.error = std::make_unique<const Error>(*error);
  const uint32_t reached = error != nullptr ? EventCell::kPoisoned : EventCell::kDone;
  const uint32_t before = cell.state.exchange(reached, std::memory_order_release);
  if (before == EventCell::kPendingSleepers) futex_wake_all(cell.state);
  drop_user(cell);
}

const Error* wait_cell(EventCell& cell) {
  uint32_t state = EventCell::kPending;
  const auto reached = [&] {
    state = cell.state.load(std::memory_order_acquire);
    return state >= EventCell::kDone;
  };
  if (!spin_until(reached)) {
    while (!reached()) {
      // Relaxed: it only tells the signaller that a thread sleeps, and must not order anything.
      if (state == EventCell::kPendingSleepers ||
          cell.state.compare_exchange_weak(state, EventCell::kPendingSleepers,
                                           std::memory_order_relaxed)) {
        futex_wait(cell.state, EventCell::kPendingSleepers);
      }
    }
  }
  return state == EventCell::kPoisoned ? cell.error.get() : nullptr;
}

void drop_user(EventCell& cell) { cell.num_users.fetch_sub(1, std::memory_order_release); }

EventCell& EventCellPool::take() {
  const std::lock_guard lock(mutex_);
  EventCell* cell = find_unused();
  if (cell == nullptr) cell = all_.emplace_back(std::make_unique<EventCell>()).get();
  // Release, not relaxed: for ThreadSanitizer a release store replaces what earlier users of the
  // cell published, which would otherwise order them before the next waiter.
  cell->state.store(EventCell::kPending, std::memory_order_release);
  cell->num_users.store(1, std::memory_order_relaxed);
  return *cell;
}

// Returns a cell that no stream uses, or null. The loads are relaxed on purpose: an acquire would
// order the host after the streams. That is safe: the reset fields are atomic, and the stores that
// reset them depend on the load that saw the count at zero, the last write of the old users.
EventCell* EventCellPool::find_unused() {
  constexpr int kMaxLooks = 4;  // a cell with a long wait must not block the others
  for (int i = 0; i < kMaxLooks && !returned_.empty(); ++i) {
    EventCell* cell = returned_.front();
    returned_.pop_front();
    const bool used = cell->num_users.load(std::memory_order_relaxed) != 0;
    const bool poisoned = cell->state.load(std::memory_order_relaxed) == EventCell::kPoisoned;
    if (!used && !poisoned) return cell;
    // A poisoned cell keeps its error for readers that come later, and is never reused.
    if (used) returned_.push_back(cell);
  }
  return nullptr;
}

void EventCellPool::give_back(EventCell& cell) {
  const std::lock_guard lock(mutex_);
  returned_.push_back(&cell);
}

CpuEvent::~CpuEvent() {
  if (newest_ != nullptr) pool_.give_back(*newest_);
}

bool CpuEvent::query() const {
  point_.check_outside();
  return newest_ == nullptr || newest_->state.load(std::memory_order_acquire) >= EventCell::kDone;
}

void CpuEvent::synchronize() const {
  point_.check_outside();
  if (newest_ == nullptr) return;
  if (const Error* error = wait_cell(*newest_)) throw Error(*error);
}

EventCell& CpuEvent::begin_version() {
  point_ = {};
  if (newest_ != nullptr) pool_.give_back(*newest_);
  newest_ = &pool_.take();
  return *newest_;
}

}  // namespace sluice
