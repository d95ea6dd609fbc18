// EventCell, its pool, and CpuEvent: the events of the CPU device.
//
// Each recorded version of an event has its own cell. A counter per event or per stream would be
// smaller, but it would order a late waiter after later versions as well, and ThreadSanitizer would
// not report a slot that is refilled too early.
// Thread rule: stated at each function; the pool is used by host threads only.
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
// It orders the signalling worker's work before the waiter's, and nothing else.
struct alignas(64) EventCell {
  enum State : uint32_t { kPending = 0, kPendingSleepers = 1, kDone = 2, kPoisoned = 3 };

  std::atomic<uint32_t> state{kPending};
  // One for the recording stream until it has signalled, and one for each waiting stream until its
  // wait has returned. Reused only at 0.
  std::atomic<uint32_t> num_users{0};
  std::unique_ptr<const Error> error;  // written before kPoisoned is published, then constant
};

// Publishes that the work captured by `cell` has ended; `error` is not null if it failed.
// Called by the recording worker, once.
void signal_cell(EventCell& cell, const Error* error);

// Blocks until `cell` is signalled; returns its error or null. Called by workers and the host.
const Error* wait_cell(EventCell& cell);

// Ends a worker's use of a cell; the worker must not touch it afterwards.
void drop_user(EventCell& cell);

// Cells of one device. Cells are reused, and freed only with the device, when no worker is left:
// freeing by reference count would have to order the streams that share a cell.
class EventCellPool {
 public:
  // A pending cell with one user, the stream that will signal it.
  // Cost: allocates only while the number of pending versions grows.
  EventCell& take();

  // Ends the host's use of `cell`. Workers may still use it; it is reused after they are done.
  void give_back(EventCell& cell);

 private:
  EventCell* find_unused();

  std::mutex mutex_;  // protects the pool between host threads; workers never lock it
  std::deque<EventCell*> returned_;  // given back, oldest first; perhaps still in use
  std::vector<std::unique_ptr<EventCell>> all_;
};

class CpuEvent final : public Event {
 public:
  explicit CpuEvent(EventCellPool& pool) : pool_(pool) {}
  ~CpuEvent() override;

  bool query() const override;
  void synchronize() const override;

  // Whether the device that owns `pool` made this event.
  bool is_of(const EventCellPool& pool) const { return &pool_ == &pool; }

  // A new version, to be signalled by the stream that records it.
  EventCell& begin_version();

  // The newest version; null when never recorded.
  EventCell* newest() const { return newest_; }

  // Set if the event was last recorded inside a capture, else empty.
  const CapturePoint& point() const { return point_; }
  void set_point(CapturePoint point) { point_ = std::move(point); }

 private:
  EventCellPool& pool_;
  CapturePoint point_;
  EventCell* newest_ = nullptr;
};

}  // namespace sluice
