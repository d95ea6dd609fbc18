// Shared by the kernels of ops/cuda: bf16 in vectors of 16 bytes, and sums in a fixed order.
//
// Thread rule: device code, pure functions of registers, except `row_sum`, which takes the shared
// memory that it uses.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>

#include "ops/kv_blocks.h"

namespace sluice::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;
// Shared memory of a block on every GPU from compute capability 8.0 on: what 8.6, 8.9 and 12.0
// have.
inline constexpr size_t kLeastSharedBytes = 99 * 1024;

// Eight neighbouring bf16: the widest load of a thread.
struct alignas(16) Bf16x8 {
  uint32_t pairs[4];  // the lower half of a pair is the lower index
};

// Exact: bf16 is the upper half of f32.
__device__ inline float bf16_to_float(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest even.
__device__ inline uint16_t float_to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

// Eight bf16 to f32, in ascending order of index.
__device__ inline void unpack(const Bf16x8& packed, float (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(packed.pairs[i] << 16);
    values[2 * i + 1] = __uint_as_float(packed.pairs[i] & 0xffff0000u);
  }
}

// The inverse of unpack, rounded to nearest even.
__device__ inline Bf16x8 pack(const float (&values)[8]) {
  Bf16x8 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    packed.pairs[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return packed;
}

// e^x = 2^(kLog2E x).
inline constexpr float kLog2E = 1.4426950408889634f;

// The sum over groups of `kWidth` neighbouring lanes, the same bits in each of them.
template <int kWidth>
__device__ inline float group_sum(float value) {
#pragma unroll
  for (int step = kWidth / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, step);
  }
  return value;
}

// The sum over `kThreads` neighbouring threads, whole warps, the same bits in each of them: lanes
// first, then the warps' sums in ascending order. `partials` is shared memory of kThreads / 32
// floats, one piece for each such group, used nowhere else until the next barrier.
// REQUIRES: every thread of the block calls it.
template <int kThreads>
__device__ inline float row_sum(float value, float* partials) {
  value = group_sum<kWarpThreads>(value);
  if constexpr (kThreads > kWarpThreads) {
    const int thread = threadIdx.x % kThreads;
    if (thread % kWarpThreads == 0) partials[thread / kWarpThreads] = value;
    __syncthreads();
    value = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kThreads / kWarpThreads; ++warp) value += partials[warp];
  }
  return value;
}

// Whether vectors of 16 bytes may be read and written at `data` (null is fine: it is not used).
inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
// The same for every block of a view.
inline bool are_aligned(const KvBlocksView& kv) {
  return is_aligned(kv.base) && kv.stride_bytes % 16 == 0;
}

}  // namespace sluice::cuda
