// Asynchronous copies into shared memory, 4 or 16 bytes a thread (sm_80 and newer).
//
// Used by attention kernels and products with few rows. Thread rule: device code.
#pragma once

#include <cstdint>

namespace sluice::cuda {

// The 32-bit address that PTX instructions of shared memory take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, or writes 16 zeros without reading `source`.
__device__ __forceinline__ void copy_16(uint32_t destination, const void* source, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(present ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_16(void* destination, const void* source, bool present) {
  copy_16(shared_address(destination), source, present);
}

// The same for what is read once, ahead: the rest of its line of 128 bytes comes to L2, too.
__device__ __forceinline__ void copy_16_ahead(void* destination, const void* source, bool present) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(destination)),
      "l"(source), "r"(present ? 16 : 0)
      : "memory");
}

// The same for 4 bytes, which only go by L1.
__device__ __forceinline__ void copy_4(void* destination, const void* source, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(destination)),
               "l"(source), "r"(present ? 4 : 0)
               : "memory");
}

// Ends a group of copies of this thread.
__device__ __forceinline__ void end_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all groups of this thread but the last `kCount`.
template <int kCount>
__device__ __forceinline__ void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kCount) : "memory");
}

// Waits for all copies of this thread.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace sluice::cuda
