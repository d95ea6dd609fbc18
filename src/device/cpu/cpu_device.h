// CpuDevice: the CPU as a Device; owns the memory, the event cells and the hook of its streams.
//
// Made by make_device("cpu"); only CpuStream uses its parts. Thread rule: one host thread makes
// objects and enqueues; workers share nothing of it but the hook.
#pragma once

#include <atomic>
#include <memory>

#include "device/cpu/cpu_event.h"
#include "device/cpu/cpu_memory.h"
#include "device/device.h"
#include "device/device_hook.h"
#include "device/trace.h"

namespace sluice {

class CpuDevice final : public Device {
 public:
  // `hook` is null except in tests and benchmarks.
  CpuDevice(const DeviceOptions& options, std::unique_ptr<DeviceHook> hook);
  // REQUIRES: its streams and buffers are gone (checked).
  ~CpuDevice() override;

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  DeviceInfo info() const override;
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override;
  std::unique_ptr<Event> make_event() override;
  using Device::allocate;
  Buffer allocate(size_t size_bytes, MemoryKind kind,
                  const AllocationProgress& on_progress) override;
  int64_t num_allocations() const override { return memory_.num_allocations(); }
  size_t allocated_bytes(MemoryKind kind) const override { return memory_.allocated_bytes(kind); }
  size_t peak_allocated_bytes(MemoryKind kind) const override { return memory_.peak_bytes(kind); }

  // For CpuStream.
  const CpuMemory& memory() const { return memory_; }
  EventCellPool& event_cells() { return event_cells_; }
  // The hook if it meters transfers, else null.
  DeviceHook* transfer_meter() const { return transfer_meter_; }
  TraceSink* trace() const { return options_.trace; }
  // Called by a stream's destructor, so that ~CpuDevice can check that none is left.
  void stream_gone() { --num_streams_; }

 private:
  void deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept override;

  const DeviceOptions options_;
  const int num_threads_;
  CpuMemory memory_;
  EventCellPool event_cells_;
  const std::unique_ptr<DeviceHook> hook_;
  DeviceHook* const transfer_meter_;
  uint64_t num_streams_made_ = 0;
  int num_streams_ = 0;
};

// Hardware threads that this process may run on.
int num_usable_cores();

}  // namespace sluice
