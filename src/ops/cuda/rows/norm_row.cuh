// The arithmetic of RMSNorm: in which order a row's squares are added, and what becomes of them.
//
// Used by the kernels of norm.cu, which give a row to different threads and have to agree bit for
// bit. Hence sums with no freedom of contraction. Thread rule: device code.
#pragma once

#include "ops/cuda/common.cuh"

namespace sluice::cuda {

// A row of up to 16,384 elements is held by that many threads, each with up to 4 vectors of 8:
// those whose index is its own plus a multiple of row_threads. It adds them in ascending order,
// then come its warp's lanes, then the warps.
inline constexpr int kNormVectors = 4;
inline constexpr int kMaxNormThreads = 512;

inline int norm_row_threads(int64_t hidden) {
  constexpr int64_t kPerWarp = kWarpThreads * kNormVectors * 8;
  if (hidden <= kPerWarp) return 32;
  if (hidden <= 4 * kPerWarp) return 128;
  if (hidden <= 8 * kPerWarp) return 256;
  return kMaxNormThreads;
}

// bf16(a + b), 8 times.
__device__ inline Bf16x8 add_rounded(const Bf16x8& a, const Bf16x8& b) {
  float x[8], y[8];
  unpack(a, x);
  unpack(b, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] += y[i];
  return pack(x);
}

__device__ inline float vector_squares(const Bf16x8& vector) {
  float x[8], sums[4];
  unpack(vector, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = __fmaf_rn(x[i + 4], x[i + 4], __fmul_rn(x[i], x[i]));
  return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
}

// The hardware's reciprocal root, within 2 units: a division and an exact root would take longer
// than the loads that a single row waits for.
__device__ inline float norm_scale(float squares, float one_over_hidden, float eps) {
  return rsqrtf(__fmaf_rn(squares, one_over_hidden, eps));
}

__device__ inline Bf16x8 scaled(const Bf16x8& vector, const Bf16x8& weight, float scale) {
  float x[8], w[8];
  unpack(vector, x);
  unpack(weight, w);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = w[i] * (x[i] * scale);
  return pack(x);
}

}  // namespace sluice::cuda
