// ScheduleFuzzer: seeded delays between the tasks of a CPU stream.
//
// A schedule that the machine would show once a week shows up in a test with a seed, and can be
// called up again by it. Thread rule: belongs to one stream's worker.
#pragma once

#include <cstdint>

namespace sluice {

class ScheduleFuzzer {
 public:
  // 0 turns it off; then `delay` costs one branch.
  explicit ScheduleFuzzer(uint64_t seed) : state_(seed) {}

  // Does nothing, yields or sleeps up to 200 us, as the seed decides.
  void delay() {
    if (state_ != 0) delay_once();
  }

 private:
  void delay_once();

  uint64_t state_;
};

}  // namespace sluice
