// DeviceHook: lets tests and benchmarks delay the streams of a device and slow down its link.
//
// Implemented in tests/support. A device of make_device has none; each task then costs one
// comparison with null. Thread rule: stated at each function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "device/device.h"

namespace sluice {

// Direction of a transfer between host and device memory.
enum class TransferDirection { kToDevice, kToHost };

// Delays one stream between its tasks.
//
// Called by one thread at a time, in the order of the stream: on the CPU device by its worker, on
// CUDA by the driver's thread for host functions.
class StreamDelay {
 public:
  virtual ~StreamDelay() = default;
  virtual void delay() = 0;
};

class DeviceHook {
 public:
  virtual ~DeviceHook() = default;

  // Called by make_stream for the n-th stream of the device, counted from 1. Null: the stream is
  // not delayed. Host thread.
  virtual std::unique_ptr<StreamDelay> make_delay(std::string_view stream_name,
                                                  uint64_t stream_number) = 0;

  // Whether the device calls `after_transfer`. A CUDA device refuses a hook that returns true,
  // since its link cannot be slowed down.
  virtual bool meters_transfers() const = 0;

  // Called after a transfer of `num_bytes` that began at `begin_ns` (now_ns of host/waiting.h). May
  // sleep, which delays the stream. Called on workers, on several at a time.
  virtual void after_transfer(TransferDirection direction, size_t num_bytes, int64_t begin_ns) = 0;

  // Shared memory of a block that a GPU is to have if it has more: ops then take the kernels of
  // smaller GPUs. 0: what it has. Host thread, once for a device.
  virtual size_t most_shared_bytes() const { return 0; }
};

// make_device with a hook. Errors: those of make_device; kInvalidArgument for a hook that meters
// the link of a GPU.
std::unique_ptr<Device> make_device_with_hook(std::string_view spec, const DeviceOptions& options,
                                              std::unique_ptr<DeviceHook> hook);

}  // namespace sluice
