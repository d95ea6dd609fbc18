// ScheduleFuzzer: seeded delays between the tasks of a stream.
//
// A schedule that the machine would show once a week shows up in a test with a seed, and can be
// called up again by it. On the CPU device the stream's worker calls it, on CUDA the driver's
// thread for host functions. Thread rule: one thread at a time, in the order of one stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "device/device.h"

namespace sluice {

class ScheduleFuzzer {
 public:
  // For the n-th stream of a device, counted from 1, as its options say. Streams are not delayed
  // alike. Off without such options; then `delay` costs one branch.
  ScheduleFuzzer(const DeviceOptions& options, uint64_t stream_number,
                 std::string_view stream_name);

  bool is_on() const { return slow_delay_.count() > 0 || state_ != 0; }

  // Does nothing, yields or sleeps up to 200 us, as the seed decides; a slow stream also sleeps.
  void delay() {
    if (is_on()) delay_once();
  }

 private:
  void delay_once();
  void delay_by_seed();

  uint64_t state_;                        // 0: no seed
  std::chrono::microseconds slow_delay_;  // 0: not a slow stream
};

}  // namespace sluice
