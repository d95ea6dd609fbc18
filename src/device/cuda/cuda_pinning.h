// Large pinned memory: pages that several threads have backed, then locked for the GPU.
//
// Used by CudaMemory from kLargePinnedBytes on. cudaHostAlloc takes and zeroes pages on one thread
// and reports no progress, which is several times slower for a host tier of many GiB.
// The memory is one registration: several are no faster, and a copy that touches two of them, even
// a strided one whose rows each lie in one, is refused (cudaErrorInvalidValue). Thread rule: any
// thread; the GPU is current.
#pragma once

#include <cstddef>

#include "device/device.h"

namespace sluice {

// Smaller ones take little time either way, and a piece of back_host_pages is as large.
inline constexpr size_t kLargePinnedBytes = size_t{64} << 20;

// Zeroed memory, which kernels of all GPUs can access at the same address. `on_progress` may be
// null and reports the backing of the pages, not their registration.
// Errors: kDoesNotFit naming the size, what is left and a remedy; what on_progress throws.
std::byte* pin_host_memory(size_t size_bytes, const AllocationProgress& on_progress);
void unpin_host_memory(std::byte* data, size_t size_bytes) noexcept;

}  // namespace sluice
