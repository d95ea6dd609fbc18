// DeviceHook: what tests attach to a device, to delay its streams and to meter its link.
//
// Implemented in tests/support. Devices of make_device have none: each task then costs a comparison
// with null. Thread rule: said at each function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "device/device.h"

namespace sluice {

// Across the link between host and device memory.
enum class TransferDirection { kToDevice, kToHost };

// Holds one stream up between its tasks.
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

  // For the n-th stream of the device, counted from 1; null: it is not delayed. Host thread.
  virtual std::unique_ptr<StreamDelay> make_delay(std::string_view stream_name,
                                                  uint64_t stream_number) = 0;

  // Whether `after_transfer` is to be called. A GPU's link is real: a device on CUDA refuses a hook
  // that meters.
  virtual bool meters_transfers() const = 0;

  // `num_bytes` were moved since `begin_ns` (now_ns); may sleep, and the stream is late by that.
  // Any worker, several at a time.
  virtual void after_transfer(TransferDirection direction, size_t num_bytes, int64_t begin_ns) = 0;
};

// make_device with a hook. Errors: those of make_device; kInvalidArgument for a hook that meters
// the link of a GPU.
std::unique_ptr<Device> make_device_with_hook(std::string_view spec, const DeviceOptions& options,
                                              std::unique_ptr<DeviceHook> hook);

}  // namespace sluice
