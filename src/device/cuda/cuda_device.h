// CudaDevice: one NVIDIA GPU behind the device contract; its memory, streams and properties.
//
// Made by make_device("cuda"); its parts are shared with CudaStream and CudaEvent, and src/ops/cuda
// asks it for its properties. Thread rule: one host thread makes things and enqueues; it need not
// be the thread that made the device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_ledger.h"
#include "device/cuda/cuda_memory.h"
#include "device/device.h"
#include "device/device_hook.h"
#include "device/trace.h"

namespace sluice {

class CudaDevice final : public Device {
 public:
  // Ignored option: num_threads, which is about the CPU device's workers. `hook` is null but for
  // tests.
  // Errors: kUnsupported when there is no such GPU; kInvalidArgument for a hook that meters
  // transfers, since a real link cannot be slowed down and a test of that would mean nothing.
  CudaDevice(int ordinal, const DeviceOptions& options, std::unique_ptr<DeviceHook> hook);
  // REQUIRES: its streams and buffers are gone (checked).
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  DeviceInfo info() const override;
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override;
  std::unique_ptr<Event> make_event() override;
  using Device::allocate;
  Buffer allocate(size_t size_bytes, MemoryKind kind,
                  const AllocationProgress& on_progress) override;
  int64_t num_allocations() const override { return memory_.num_allocations(); }
  size_t allocated_bytes(MemoryKind kind) const override { return memory_.allocated_bytes(kind); }
  size_t peak_allocated_bytes(MemoryKind kind) const override { return memory_.peak_bytes(kind); }

  // For ops: launch shapes depend on the number of multiprocessors and the shared memory.
  int ordinal() const { return ordinal_; }
  const cudaDeviceProp& properties() const { return properties_; }

  // Makes this GPU the calling thread's, as the runtime requires before most calls.
  // Cost: tens of nanoseconds when it is already.
  void make_current() const;

  // For CudaStream and CudaEvent.
  const CudaMemory& memory() const { return memory_; }
  TraceSink* trace() const { return options_.trace; }
  // Null: the next stream is not delayed.
  std::unique_ptr<StreamDelay> make_delay(const std::string& stream_name) {
    ++num_streams_made_;
    return hook_ != nullptr ? hook_->make_delay(stream_name, num_streams_made_) : nullptr;
  }
  CudaLedger& make_ledger(const std::string& stream_name);
  void stream_gone() { --num_streams_; }

  // The error of a host wait or launch that failed with `status`: names the newest ops of all
  // streams, since the runtime does not say which of them it was. A sticky one is kept, and is the
  // answer from then on.
  SharedError fault(cudaError_t status);

 private:
  void deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept override;
  std::string newest_ops() const;

  const DeviceOptions options_;
  const int ordinal_;
  cudaDeviceProp properties_ = {};
  CudaMemory memory_;
  const std::unique_ptr<DeviceHook> hook_;
  SharedError sticky_error_;
  std::vector<void*> report_pages_;  // pinned, kReportsPerPage words each
  std::vector<std::unique_ptr<CudaLedger>> ledgers_;
  int num_streams_ = 0;
  uint64_t num_streams_made_ = 0;
};

// The CUDA device behind `device`. REQUIRES: it is one (checked).
CudaDevice& as_cuda(Device& device);
const CudaDevice& as_cuda(const Device& device);

}  // namespace sluice
