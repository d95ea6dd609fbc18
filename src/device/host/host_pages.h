// Large host memory: mapped in huge pages, and backed by real pages by several threads at once.
//
// Used by CpuMemory, whose memory is backed as it is used, and by the CUDA device, which needs all
// of it before it can pin it. Thread rule: the range belongs to the caller.
#pragma once

#include <cstddef>
#include <functional>

#include "device/device.h"

namespace sluice {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Private memory of zeros, `size_bytes` rounded up to whole huge pages, at a huge page's border.
// Null when the system has no more. Cost: none before the pages are touched.
std::byte* map_host_pages(size_t size_bytes);
void unmap_host_pages(std::byte* data, size_t size_bytes) noexcept;

struct BackPagesOptions {
  int num_threads = 0;  // 0: all usable cores, at most 16
  size_t piece_bytes = size_t{64} << 20;
  std::function<size_t()> available_bytes;  // what the machine has left; tests give their own
};

// Has the system back fresh pages now, which it does otherwise one by one as they are touched.
// Returns true when all are there, and false when the machine's memory ran so low that the next
// pieces could have ended a process over it. `on_progress` is told how many bytes are backed, not
// falling, on the calling thread; may be null. Errors: what it throws ends the work.
// Cost: zeroing; a core does some 5 to 10 GB/s, several share the work.
bool back_host_pages(std::byte* data, size_t size_bytes, const BackPagesOptions& options,
                     const AllocationProgress& on_progress);

}  // namespace sluice
