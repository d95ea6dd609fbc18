// Asynchronous copies into shared memory, 16 bytes a thread (sm_80 and newer).
//
// Used by attention kernels. Thread rule: device code.
#pragma once

#include <cstdint>

namespace sluice::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, or writes 16 zeros without reading `source`.
__device__ __forceinline__ void copy_16(void* destination, const void* source, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(destination)),
               "l"(source), "r"(present ? 16 : 0)
               : "memory");
}

// Waits for all copies of this thread.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace sluice::cuda
