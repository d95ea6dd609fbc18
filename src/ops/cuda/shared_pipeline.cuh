// Barriers and bulk tensor copies of Hopper, as thin functions over PTX: a producer warp and
// consumer warpgroups pass tiles through shared memory with them.
//
// Used by kernels compiled for sm_90 and newer only. Addresses are 32-bit shared-memory addresses.
// Thread rule: device code.
#pragma once

#include <cstdint>

#include <cuda.h>

namespace sluice::cuda {

// An mbarrier in shared memory. A phase ends when `num_arrivals` threads have arrived and all bytes
// that they announced have been written.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals));
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival; accesses of this thread before it are visible to threads that wait for the phase.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival that announces `num_bytes` of copies to come.
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(num_bytes)
               : "memory");
}

// Waits for the end of the phase of parity `parity` (0 for the first phase).
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra passed;\n"
      "bra again;\n"
      "passed:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Orders ordinary writes of shared memory by this thread before reads by tensor cores and copy
// engine that follow a barrier.
__device__ __forceinline__ void shared_write_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barriers of the CTA by number (0 belongs to __syncthreads); `num_threads` counts both sides.
__device__ __forceinline__ void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// Sets the registers per thread of a warpgroup to kCount, fewer or more than before; kCount is a
// multiple of 8. take_registers waits until the registers are free. All warps of the warpgroup
// call.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Brings the descriptor into the cache, so that the first copy does not wait for it.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// Copies the box at (x, y, z, w), x innermost, to shared memory; its bytes count on `barrier`.
__device__ __forceinline__ void copy_box(uint32_t destination, const CUtensorMap* map,
                                         uint32_t barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// The same of a map of five dimensions.
__device__ __forceinline__ void copy_box(uint32_t destination, const CUtensorMap* map,
                                         uint32_t barrier, int x, int y, int z, int w, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
      : "memory");
}

// Copies neighbouring bytes, a multiple of 16, to shared memory; they count on `barrier`.
__device__ __forceinline__ void copy_bytes(uint32_t destination, const void* source,
                                           uint32_t num_bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(__cvta_generic_to_global(source)), "r"(num_bytes), "r"(barrier)
      : "memory");
}

}  // namespace sluice::cuda
