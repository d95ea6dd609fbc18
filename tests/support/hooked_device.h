// Devices whose streams are delayed by a seed or by name, or whose transfers take time.
//
// Used by race, schedule and overlap tests. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "device/device.h"

namespace sluice::testing {

struct TestHooks {
  uint64_t schedule_seed = 0;  // not 0 inserts seeded delays between a stream's tasks

  // Streams whose names begin with this text start every task late, so that missing waits for them
  // show.
  std::string slow_streams;
  int64_t slow_stream_delay_us = 500;

  // CPU, not 0: transfers between host or pinned and device memory take at least bytes / rate on
  // their stream. Streams share one simulated link per direction.
  int64_t link_bytes_per_second = 0;

  // Not 0: shared memory of a block that a GPU is to have if it has more.
  size_t most_shared_bytes = 0;
};

// Errors: those of make_device; kInvalidArgument for a link rate below 0, or above 0 on a GPU.
std::unique_ptr<Device> make_hooked_device(std::string_view spec, const DeviceOptions& options,
                                           const TestHooks& hooks);

}  // namespace sluice::testing
