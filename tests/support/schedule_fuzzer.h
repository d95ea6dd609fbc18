// ScheduleFuzzer: seeded delays between the tasks of a stream.
//
// A schedule that the machine would show once a week shows up in a test with a seed, and can be
// called up again by it. Made by hooked_device.h. Thread rule: as StreamDelay.
#pragma once

#include <chrono>
#include <cstdint>

#include "device/device_hook.h"

namespace sluice::testing {

class ScheduleFuzzer final : public StreamDelay {
 public:
  // `seed` 0: no delays by seed. Each task of the stream also begins late by `slow_delay`.
  // Streams of one device are not delayed alike.
  ScheduleFuzzer(uint64_t seed, uint64_t stream_number, std::chrono::microseconds slow_delay);

  // Does nothing, yields or sleeps up to 200 us, as the seed decides; a slow stream also sleeps.
  void delay() override;

 private:
  void delay_by_seed();

  uint64_t state_;  // 0: no seed
  const std::chrono::microseconds slow_delay_;
};

}  // namespace sluice::testing
