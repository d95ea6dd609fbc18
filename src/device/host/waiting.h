// Waiting that orders no two threads: raw futexes, and a spin that yields.
//
// Used by the CPU streams, events and thread teams. ThreadSanitizer does not see a raw futex system
// call, so sleeping and waking order nothing; only the caller's acquire loads do. Thread rule: any
// thread.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

namespace sluice {

// Sleeps while `word` holds `expected`. May return early: the caller must check again.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The same in memory that processes share, for at most `time_ns`.
inline void futex_wait_shared(std::atomic<uint32_t>& word, uint32_t expected, int64_t time_ns) {
  const timespec time{.tv_sec = time_ns / 1'000'000'000, .tv_nsec = time_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

inline void futex_wake_shared(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Time to spin before sleeping. Waking a thread costs 5 to 50 us, and the ops of a decode step
// follow each other faster than that; a longer spin would waste cores if threads outnumber them.
inline constexpr int64_t kSpinNs = 20'000;

// Some tens of cycles in which the core knows that this thread polls. In cpu/features_x86.cc and
// cpu/features_aarch64.cc.
void pause_core();

// Polls `ready()` until it is true, for about `spin_ns`; returns its last value. Yields the core
// about every microsecond.
template <typename Ready>
bool spin_until(const Ready& ready, int64_t spin_ns = kSpinNs) {
  if (ready()) return true;
  const int64_t deadline_ns = steady_ns() + spin_ns;
  do {
    for (int i = 0; i < 32; ++i) {
      pause_core();
      if (ready()) return true;
    }
    sched_yield();
  } while (steady_ns() < deadline_ns);
  return ready();
}

}  // namespace sluice
