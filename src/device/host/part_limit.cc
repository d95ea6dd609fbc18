// Counts of parts, and waits by polling them.
#include "device/host/part_limit.h"

#include <chrono>
#include <thread>

namespace sluice {
namespace {

// A part of a watched pass takes a millisecond or more, and one more is in the stream meanwhile.
constexpr std::chrono::microseconds kPollInterval(50);

}  // namespace

// The end of an earlier pass may lie after its last part: it was asked for too late.
void PartLimit::begin_pass() {
  end_.store(kNoEnd, std::memory_order_relaxed);
  allowed_.store(num_parts_ + kPartsAhead, std::memory_order_release);
}

void PartLimit::end() {
  end_.store(allowed_.load(std::memory_order_relaxed), std::memory_order_release);
}

// The first rank waits for the others to leave, since one that comes late must still find the end
// of this pass, not the parts of the next.
bool PartLimit::advance() {
  ++num_parts_;
  const int64_t end = end_.load(std::memory_order_relaxed);
  if (end == kNoEnd) {
    allowed_.store(num_parts_ + kPartsAhead, std::memory_order_release);
    return true;
  }
  if (num_parts_ < end) return true;
  while (num_left_.load(std::memory_order_acquire) < group_.options().num_ranks - 1) {
    group_.check();
    std::this_thread::sleep_for(kPollInterval);
  }
  num_left_.store(0, std::memory_order_relaxed);
  return false;
}

bool PartLimit::may_go_on(int64_t num_parts) {
  while (num_parts >= allowed_.load(std::memory_order_acquire)) {
    if (num_parts >= end_.load(std::memory_order_acquire)) {
      num_left_.fetch_add(1, std::memory_order_release);
      return false;
    }
    group_.check();
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

}  // namespace sluice
