// The seeded delays; see the header.
#include "support/schedule_fuzzer.h"

#include <thread>

#include <sched.h>

#include "core/mix.h"

namespace sluice::testing {
// The odd factor keeps a seed other than 0 from becoming 0.
ScheduleFuzzer::ScheduleFuzzer(uint64_t seed, uint64_t stream_number,
                               std::chrono::microseconds slow_delay)
    : state_(seed * (2 * stream_number + 1)), slow_delay_(slow_delay) {}

void ScheduleFuzzer::delay() {
  if (slow_delay_.count() > 0) std::this_thread::sleep_for(slow_delay_);
  if (state_ != 0) delay_by_seed();
}

void ScheduleFuzzer::delay_by_seed() {
  uint64_t random = split_mix(state_);
  if (state_ == 0) random = split_mix(state_);  // 0 means off; stay on
  const unsigned choice = random & 7;
  const unsigned amount = (random >> 8) & 0xff;
  if (choice < 3) return;  // most tasks follow at once, or the pattern would be too regular
  if (choice < 6) {
    for (unsigned i = 0; i < amount % 8; ++i) sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(amount % 200));
  }
}

}  // namespace sluice::testing
