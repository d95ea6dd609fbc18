// Reserves time on the simulated link and sleeps until it has passed.
#include "support/simulated_link.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <sys/prctl.h>

#include "core/clock.h"

namespace sluice::testing {

int64_t SimulatedLink::reserve(size_t num_bytes, int64_t earliest_ns) {
  const auto duration_ns = static_cast<int64_t>(static_cast<double>(num_bytes) * 1e9 /
                                                static_cast<double>(bytes_per_second_));
  int64_t free_from_ns = free_from_ns_.load(std::memory_order_relaxed);
  int64_t over_ns = 0;
  do {
    over_ns = std::max(free_from_ns, earliest_ns) + duration_ns;
  } while (!free_from_ns_.compare_exchange_weak(free_from_ns, over_ns, std::memory_order_relaxed));
  return over_ns;
}

// The next piece begins at the end of this reservation, not when the sleeper wakes up: oversleeping
// must not slow the link down.
void SimulatedLink::pass(size_t num_bytes, int64_t begin_ns) {
  prctl(PR_SET_TIMERSLACK, 1UL);  // of this thread: sleeps end on time, not the default 50 us later
  int64_t over_ns = begin_ns;
  for (size_t left = num_bytes; left > 0;) {
    const size_t piece = std::min(left, kPieceBytes);
    over_ns = reserve(piece, over_ns);
    left -= piece;
    const int64_t wait_ns = over_ns - steady_ns();
    if (wait_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait_ns));
  }
}

}  // namespace sluice::testing
