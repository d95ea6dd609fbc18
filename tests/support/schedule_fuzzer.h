// ScheduleFuzzer: seeded delays between the tasks of a stream.
//
// A rare schedule occurs in a test with some seed, and occurs again with the same seed. Made by
// hooked_device.h. Thread rule: as StreamDelay.
#pragma once

#include <chrono>
#include <cstdint>

#include "device/device_hook.h"

namespace sluice::testing {

class ScheduleFuzzer final : public StreamDelay {
 public:
  // `seed` 0: no seeded delays. Each task of the stream also starts `slow_delay` late. Streams of
  // one device get different delays.
  ScheduleFuzzer(uint64_t seed, uint64_t stream_number, std::chrono::microseconds slow_delay);

  // Does nothing, yields or sleeps up to 200 us, as the seed decides; a slow stream also sleeps.
  void delay() override;

 private:
  void delay_by_seed();

  uint64_t state_;  // 0: no seed
  const std::chrono::microseconds slow_delay_;
};

}  // namespace sluice::testing
