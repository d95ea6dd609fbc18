// Large host memory: mapped in huge pages, and backed with physical pages by several threads.
//
// Used by CpuMemory, whose memory is backed as it is touched, and by the CUDA device, which needs
// every page backed before it can pin the range. Thread rule: the range belongs to the caller.
#pragma once

#include <cstddef>
#include <functional>

#include "device/device.h"

namespace sluice {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Private zeroed memory, `size_bytes` rounded up to whole huge pages and aligned to one. Null if
// the system refuses. Cost: none before pages are touched.
std::byte* map_host_pages(size_t size_bytes);
void unmap_host_pages(std::byte* data, size_t size_bytes) noexcept;

struct BackPagesOptions {
  int num_threads = 0;  // 0: all usable cores, at most 16
  size_t piece_bytes = size_t{64} << 20;
  std::function<size_t()> available_bytes;  // empty: available_memory_bytes(); tests set their own
};

// Backs all pages of a fresh mapping now instead of at their first access. Returns false, with part
// of the pages backed, if so little memory is available that the next pieces might make the kernel
// kill a process. `on_progress` (may be null) is called on the calling thread with the number of
// bytes backed, which never decreases. Errors: an exception from on_progress ends the work.
// Cost: zeroing every page, divided among the threads.
bool back_host_pages(std::byte* data, size_t size_bytes, const BackPagesOptions& options,
                     const AllocationProgress& on_progress);

}  // namespace sluice
