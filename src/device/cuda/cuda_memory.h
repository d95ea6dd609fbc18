// CudaMemory: allocations of a CUDA device, with counters, a limit, and a lookup by address.
//
// Used by CudaDevice, and by its streams to choose how a copy is made.
// Thread rule: host threads; a mutex protects all fields.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/device.h"

namespace sluice {

class CudaMemory {
 public:
  // `device_limit_bytes` caps kDevice; 0 means all memory of the GPU.
  explicit CudaMemory(size_t device_limit_bytes) : device_limit_bytes_(device_limit_bytes) {}

  // Types: aligned to at least 256 bytes. kPinned is reachable by kernels at the same address.
  // Cost: kPinned locks every page (cuda_pinning.h). kDevice may wait for running kernels.
  // Errors: kDoesNotFit naming the size, the kind, what is left and a remedy; what on_progress,
  // which may be null, throws. REQUIRES: the device is current.
  std::byte* allocate(size_t size_bytes, MemoryKind kind, const AllocationProgress& on_progress);
  void deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept;

  // The kind of memory at `data`; kHost for memory that this device did not allocate.
  // REQUIRES: a range that begins in an allocation ends in it (checked).
  MemoryKind kind_at(const std::byte* data, size_t num_bytes) const;

  int64_t num_allocations() const;
  size_t allocated_bytes(MemoryKind kind) const;
  size_t peak_bytes(MemoryKind kind) const;
  size_t device_limit_bytes() const { return device_limit_bytes_; }

 private:
  struct Usage {
    size_t alive_bytes = 0;
    size_t peak_bytes = 0;
  };
  struct Range {
    size_t size_bytes = 0;
    MemoryKind kind = MemoryKind::kHost;
  };

  std::byte* take(size_t size_bytes, MemoryKind kind) const;
  [[noreturn]] void fail_to_fit(size_t size_bytes, MemoryKind kind) const;
  Usage& usage(MemoryKind kind) { return usage_[static_cast<size_t>(kind)]; }
  const Usage& usage(MemoryKind kind) const { return usage_[static_cast<size_t>(kind)]; }

  const size_t device_limit_bytes_;
  mutable std::mutex mutex_;
  std::array<Usage, 3> usage_;
  int64_t num_allocations_ = 0;
  std::map<const std::byte*, Range> ranges_;  // begin -> size and kind, without kHost
};

}  // namespace sluice
