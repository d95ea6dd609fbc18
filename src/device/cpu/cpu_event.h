// EventCell, its pool, and CpuEvent: what streams of the CPU device wait for.
//
// Each recorded version of an event has a cell of its own. A counter per event or per stream would
// be smaller, but a late waiter would then be ordered after later versions too, and
// ThreadSanitizer would not see a slot that was refilled too early.
// Thread rule: said at each function; the pool belongs to the host side.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "core/error.h"
#include "device/capture.h"
#include "device/device.h"

namespace sluice {

// One version of an event: pending, then done or poisoned, once.
//
// The only order it carries is that of an event: from the worker that signals to whoever waits.
struct alignas(64) EventCell {
  enum State : uint32_t { kPending = 0, kPendingSleepers = 1, kDone = 2, kPoisoned = 3 };

  std::atomic<uint32_t> state{kPending};
  // The recording stream until it has signalled, and each waiting stream until it has looked.
  std::atomic<uint32_t> num_users{0};
  std::unique_ptr<const Error> error;  // written before kPoisoned is published, then constant
};

// Publishes the end of the work that `cell` captured; `error` is not null when that failed.
// Called by the recording worker, once.
void signal_cell(EventCell& cell, const Error* error);

// Blocks until `cell` is signalled; returns its error or null. Called by workers and the host.
const Error* wait_cell(EventCell& cell);

// A worker's last word about a cell.
void drop_user(EventCell& cell);

// Cells of one device. They are used again, and freed only with the device, when no worker is left:
// counting references for deletion would need an order between the streams that share a cell.
class EventCellPool {
 public:
  // A pending cell with one user, the stream that is going to signal it.
  // Cost: allocates only while the number of pending versions grows.
  EventCell& take();

  // The host has no more use for `cell`; workers may still have.
  void give_back(EventCell& cell);

 private:
  EventCell* find_unused();

  std::mutex mutex_;  // between host threads only
  std::deque<EventCell*> returned_;
  std::vector<std::unique_ptr<EventCell>> all_;
};

class CpuEvent final : public Event {
 public:
  explicit CpuEvent(EventCellPool& pool) : pool_(pool) {}
  ~CpuEvent() override;

  bool query() const override;
  void synchronize() const override;

  // Whether the device that has `pool` made it.
  bool is_of(const EventCellPool& pool) const { return &pool_ == &pool; }

  // A new version, to be signalled by the stream that records it.
  EventCell& begin_version();

  // The newest version; null when never recorded.
  EventCell* newest() const { return newest_; }

  // What it stands for when it was last recorded inside a capture.
  const CapturePoint& point() const { return point_; }
  void set_point(CapturePoint point) { point_ = std::move(point); }

 private:
  EventCellPool& pool_;
  CapturePoint point_;
  EventCell* newest_ = nullptr;
};

}  // namespace sluice
