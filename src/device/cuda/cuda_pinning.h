// Large pinned memory: pages that several threads have backed, then locked for the GPU.
//
// Used by CudaMemory from kLargePinnedBytes on. The runtime's own allocation zeroes on one thread,
// 2 GB/s, and says nothing before it is through. Thread rule: any thread; the GPU is current.
#pragma once

#include <cstddef>

#include "device/device.h"

namespace sluice {

inline constexpr size_t kLargePinnedBytes = size_t{64} << 20;

// Memory of zeros, which kernels of all GPUs reach at the same address. Parts of it may be copied
// as of any other memory: it is one registration. `on_progress` may be null.
// Errors: kDoesNotFit naming the size, what is left and a remedy; what on_progress throws.
std::byte* pin_host_memory(size_t size_bytes, const AllocationProgress& on_progress);
void unpin_host_memory(std::byte* data, size_t size_bytes) noexcept;

}  // namespace sluice
