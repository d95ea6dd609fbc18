// Reservations of the simulated link, and sleeping until they are over.
#include "device/cpu/cpu_link.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "device/cpu/waiting.h"

namespace sluice {

int64_t CpuLink::reserve(size_t num_bytes, int64_t earliest_ns) {
  const auto duration_ns = static_cast<int64_t>(static_cast<double>(num_bytes) * 1e9 /
                                                static_cast<double>(bytes_per_second_));
  int64_t free_from_ns = free_from_ns_.load(std::memory_order_relaxed);
  int64_t over_ns = 0;
  do {
    over_ns = std::max(free_from_ns, earliest_ns) + duration_ns;
  } while (!free_from_ns_.compare_exchange_weak(free_from_ns, over_ns, std::memory_order_relaxed));
  return over_ns;
}

LinkPacer::LinkPacer(CpuLink* link) : link_(link != nullptr && link->throttled() ? link : nullptr) {
  if (link_ != nullptr) over_ns_ = now_ns();
}

void LinkPacer::moved(size_t num_bytes) {
  if (link_ == nullptr) return;
  unpaid_bytes_ += num_bytes;
  if (unpaid_bytes_ >= kPieceBytes) finish();
}

void LinkPacer::finish() {
  if (link_ == nullptr || unpaid_bytes_ == 0) return;
  // The next piece follows where this one ended, not where the sleeper woke up: sleeping a little
  // too long must not slow the link down.
  over_ns_ = link_->reserve(unpaid_bytes_, over_ns_);
  unpaid_bytes_ = 0;
  const int64_t left_ns = over_ns_ - now_ns();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

}  // namespace sluice
