// Large pinned memory: pages that several threads have backed, then locked for the GPU.
//
// Used by CudaMemory from kLargePinnedBytes on. The runtime's own allocation takes and zeroes pages
// on one thread and reports no progress. One H200, 16 cores, 2026-11-21: 48 GiB in
// 18.0 s (2.9 GB/s) there, in 1.9 s (28 GB/s) here, half of it for zeroing, and 7.0 s where the
// virtual machine had never touched the memory before.
// One registration, not several: those are no faster (48 to 56 GB/s), and copies across the border
// of two, even of rows that lie each in one, are refused (cudaErrorInvalidValue). Thread rule: any
// thread; the GPU is current.
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
