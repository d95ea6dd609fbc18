// A step of the gated delta rule for a block of columns of a head, with S in shared memory.
//
// Used by steps.cu and mixer.cu. A thread has a column, so sums over k_dim go up in one thread, as
// on the CPU, and with --fmad=false the bits are the CPU's. Thread rule: device code, blocks of
// kStepThreads.
#pragma once

#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda {

inline constexpr int kStepThreads = kDeltaColumns;

// What all columns of a head need of a row; the same for all threads, so that reads are broadcasts.
struct alignas(16) StepRow {
  float q[kMaxCudaKDim];
  float k[kMaxCudaKDim];
  float decay;
  float beta;
};

// Sizes of a block's part of S. kWhole: as published, k_dim is kMaxCudaKDim and all blocks have
// kDeltaColumns columns; the compiler then knows all distances.
template <bool kWhole>
struct Part {
  int32_t other_k_dim;
  int32_t other_columns;

  __device__ int32_t k_dim() const { return kWhole ? kMaxCudaKDim : other_k_dim; }
  __device__ int32_t columns() const { return kWhole ? kDeltaColumns : other_columns; }
};

// Brings S to the L2 cache. The bytes may still change; the cache holds what is current.
__device__ inline void prefetch_state(const float* from, int32_t count) {
  constexpr int kLineFloats = 32;
  for (int32_t i = threadIdx.x * kLineFloats; i < count; i += kStepThreads * kLineFloats) {
    prefetch_to_l2(from + i);
  }
}

// Starts to copy S into shared memory, or writes zeros.
template <bool kWhole>
__device__ inline void load_state(const float* from, const Part<kWhole>& part, float* s) {
  const int32_t count = part.k_dim() * part.columns();
  if (kWhole && from != nullptr) {
    for (int32_t i = threadIdx.x * 4; i < count; i += kStepThreads * 4) {
      copy_16(s + i, from + i, true);
    }
    return;
  }
  for (int32_t i = threadIdx.x; i < count; i += kStepThreads) {
    s[i] = from != nullptr ? from[i] : 0.0f;
  }
}

// One row of a column, which goes from `s` to `to`; both have part.columns() numbers a row.
template <bool kWhole>
__device__ __forceinline__ float step(const StepRow& row, const Part<kWhole>& part, float v,
                                      const float* s, float* to) {
  const float decay = row.decay;
  // S is decayed twice rather than kept: a multiplication costs less than 128 registers.
  float seen = 0.0f, sum = 0.0f;
#pragma unroll 32
  for (int i = 0; i < part.k_dim(); ++i) seen += s[i * part.columns()] * decay * row.k[i];
  const float delta = (v - seen) * row.beta;
#pragma unroll 32
  for (int i = 0; i < part.k_dim(); ++i) {
    const float next = s[i * part.columns()] * decay + delta * row.k[i];
    to[i * part.columns()] = next;
    sum += next * row.q[i];
  }
  return sum;
}

}  // namespace sluice::cuda
