// The arithmetic of RMSNorm: the order in which a row's squares are added, and the scaling.
//
// Used by the kernels of norm.cu, which distribute a row differently and must agree bit for bit,
// hence explicit roundings; norm_scale is used by rope.cu, too. Thread rule: device code.
#pragma once

#include "ops/cuda/common.cuh"

namespace sluice::cuda {

// A row of up to 16,384 elements is held by that many threads, each with up to 4 vectors of 8:
// those whose index is its own plus a multiple of row_threads. It adds them in ascending order,
// then come its warp's lanes, then the warps.
inline constexpr int kNormVectors = 4;
inline constexpr int kMaxNormThreads = 512;

// Threads per row: the smallest instantiation of norm_rows that holds `hidden` elements; 32 threads
// hold 1024, 512 hold 16,384.
inline int norm_row_threads(int64_t hidden) {
  constexpr int64_t kPerWarp = kWarpThreads * kNormVectors * 8;
  if (hidden <= kPerWarp) return 32;
  if (hidden <= 4 * kPerWarp) return 128;
  if (hidden <= 8 * kPerWarp) return 256;
  return kMaxNormThreads;
}

// bf16(a + b) of eight pairs: the residual addition of ops/rows/norm.h.
__device__ inline Bf16x8 add_rounded(const Bf16x8& a, const Bf16x8& b) {
  float x[8], y[8];
  unpack(a, x);
  unpack(b, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] += y[i];
  return pack(x);
}

// The sum of 8 squares in one fixed order.
__device__ inline float vector_squares(const Bf16x8& vector) {
  float x[8], sums[4];
  unpack(vector, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = __fmaf_rn(x[i + 4], x[i + 4], __fmul_rn(x[i], x[i]));
  return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
}

// 1 / sqrt(mean + eps) by the hardware's approximation, within 2 units in the last place: an exact
// root and a division would take longer than the loads of a single row.
__device__ inline float norm_scale(float squares, float one_over_hidden, float eps) {
  return rsqrtf(__fmaf_rn(squares, one_over_hidden, eps));
}

// (offset + weight) * (x * scale), rounded once.
__device__ inline Bf16x8 scaled(const Bf16x8& vector, const Bf16x8& weight, float scale,
                                float offset) {
  float x[8], w[8];
  unpack(vector, x);
  unpack(weight, w);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = (offset + w[i]) * (x[i] * scale);
  return pack(x);
}

}  // namespace sluice::cuda
