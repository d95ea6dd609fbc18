// How long opening a damaged file may take, and how much memory.
//
// Used by tests that open many of them. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "support/sanitizer.h"

namespace sluice::testing {

class OpenBounds {
 public:
  // Runs `open`, which may throw.
  template <typename Open>
  void run(Open&& open) {
    const Timer timer(longest_);
    open();
  }

  // Each run took less than a second, and the process grew by less than 256 MiB since this was
  // made. A sanitizer keeps what was freed.
  void expect_met() const {
    EXPECT_LT(longest_.count(), 1.0);
    if (!kSanitized) {
      EXPECT_LT(peak_bytes() - peak_before_, size_t{256} << 20);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  struct Timer {
    explicit Timer(Seconds& longest_so_far) : longest(longest_so_far) {}
    ~Timer() { longest = std::max<Seconds>(longest, Clock::now() - start); }
    Seconds& longest;
    Clock::time_point start = Clock::now();
  };

  static size_t peak_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<size_t>(usage.ru_maxrss) * 1024;
  }

  Seconds longest_{0};
  size_t peak_before_ = peak_bytes();
};

}  // namespace sluice::testing
