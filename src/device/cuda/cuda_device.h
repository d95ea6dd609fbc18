// CudaDevice: one NVIDIA GPU as a Device; owns its memory, ledgers and properties.
//
// Made by make_device("cuda"); CudaStream and CudaEvent use its parts, and src/ops/cuda reads its
// properties. Thread rule: one host thread makes objects and enqueues; it need not be the thread
// that made the device.
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
  // Ignores options.num_threads. `hook` is null except in tests and benchmarks.
  // Errors: kUnsupported if there is no such GPU; kInvalidArgument for a hook that meters
  // transfers, since a real link cannot be slowed down.
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

  int ordinal() const { return ordinal_; }
  // For ops: kernels and launch shapes depend on the number of multiprocessors, the shared memory
  // and the compute capability, which is that of the code where it is older than the GPU
  // (code_version.h).
  const cudaDeviceProp& properties() const { return properties_; }

  // Selects this GPU on the calling thread, which the runtime requires before most calls.
  // Cost: tens of nanoseconds if it is selected already.
  void make_current() const;

  // For CudaStream and CudaEvent.
  const CudaMemory& memory() const { return memory_; }
  TraceSink* trace() const { return options_.trace; }
  // The delay of the next stream, or null. Called once for each stream, to count them.
  std::unique_ptr<StreamDelay> make_delay(const std::string& stream_name) {
    ++num_streams_made_;
    return hook_ != nullptr ? hook_->make_delay(stream_name, num_streams_made_) : nullptr;
  }
  // The ledger of a new stream, owned by the device.
  CudaLedger& make_ledger(const std::string& stream_name);
  void stream_gone() { --num_streams_; }

  // The error for a host wait or launch that failed with `status`. It names the newest ops of all
  // streams, since the runtime does not say which op failed. A sticky error is kept and returned by
  // all later calls.
  SharedError fault(cudaError_t status);

 private:
  void deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept override;
  std::string newest_ops() const;

  const DeviceOptions options_;
  const int ordinal_;
  cudaDeviceProp properties_ = {};
  CudaMemory memory_;
  const std::unique_ptr<DeviceHook> hook_;
  // The first error that lost the context; every later call fails with it.
  SharedError sticky_error_;
  std::vector<void*> report_pages_;                   // pinned, kReportsPerPage words each
  std::vector<std::unique_ptr<CudaLedger>> ledgers_;  // of all streams ever made
  int num_streams_ = 0;
  uint64_t num_streams_made_ = 0;
};

// `device` as a CudaDevice. REQUIRES: it is one (checked).
CudaDevice& as_cuda(Device& device);
const CudaDevice& as_cuda(const Device& device);

}  // namespace sluice
