// CpuMemory: the memory kinds of the CPU device, counted and capped.
//
// Used by CpuDevice and by its streams, which look up whether an address is device memory.
// Thread rule: host threads only, under a mutex; never the workers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/device.h"

namespace sluice {

class CpuMemory {
 public:
  // `device_limit_bytes` caps kDevice; 0 means all memory of the machine, as for the other kinds.
  explicit CpuMemory(size_t device_limit_bytes);

  // Types: aligned to kAlignment; from kHugePageBytes on, aligned to a huge page and backed by the
  // system as pages are touched.
  // Errors: kDoesNotFit naming the size, the kind and what is left.
  std::byte* allocate(size_t size_bytes, MemoryKind kind);
  void deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept;

  // Whether `data` is device memory.
  // REQUIRES: a range that begins in a device allocation ends in it (checked).
  bool is_device(const std::byte* data, size_t num_bytes) const;

  int64_t num_allocations() const;
  size_t allocated_bytes(MemoryKind kind) const;
  size_t peak_bytes(MemoryKind kind) const;
  size_t limit_bytes(MemoryKind kind) const;

 private:
  struct Usage {
    size_t limit_bytes = 0;
    size_t alive_bytes = 0;
    size_t peak_bytes = 0;
  };

  static constexpr size_t kAlignment = 256;

  static std::byte* take_from_system(size_t size_bytes);
  Usage& usage(MemoryKind kind) { return usage_[static_cast<size_t>(kind)]; }
  const Usage& usage(MemoryKind kind) const { return usage_[static_cast<size_t>(kind)]; }

  mutable std::mutex mutex_;  // protects the counters and the ranges
  std::array<Usage, 3> usage_;
  int64_t num_allocations_ = 0;
  std::map<const std::byte*, size_t> device_ranges_;  // begin -> size
};

// Memory that this process may use, and the part of it that is available now (host_memory.h).
// Cost of each: reads several files of /proc and /sys.
size_t machine_memory_bytes();
size_t available_memory_bytes();

}  // namespace sluice
