// Instructions for which CUDA C++ has no function, and what a kernel tells its compiler.
//
// A header of their own, since tests/ops/lanes runs kernels on a CPU with another one in its place;
// so have shared_copy.cuh, shared_pipeline.cuh, wgmma.cuh and the headers of products in their
// folders.
// Thread rule: device code.
#pragma once

#include <cstdint>

namespace sluice::cuda {

// 2^x to 2 ulp; 2^-inf is 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to 1 ulp.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Bytes 0 and 2, the sign of each in all bits of the byte after it.
__device__ __forceinline__ uint32_t extend_signs(uint32_t word) {
  uint32_t extended;
  asm("prmt.b32 %0, %1, 0, 0xa280;" : "=r"(extended) : "r"(word));
  return extended;
}

// A load that is issued at this point: the compiler would otherwise move it after the wait for
// another load, and copy the number to uniform registers.
__device__ __forceinline__ int32_t load_now(const int32_t* source) {
  int32_t value;
  asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
  return value;
}

// Brings the line of an address to the L2 cache. No thread waits for it.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Makes the compiler compute an address here, before a wait, and not after it.
__device__ __forceinline__ void keep_here(const void* address) { asm volatile("" ::"l"(address)); }

// The same number, but the compiler does not know that: what depends on it is computed again
// instead of kept in registers.
__device__ __forceinline__ int32_t hidden(int32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The dynamic shared memory of the block.
__device__ __forceinline__ unsigned char* dynamic_shared_memory() {
  extern __shared__ __align__(128) unsigned char shared[];
  return shared;
}

}  // namespace sluice::cuda
