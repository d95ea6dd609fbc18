// The gated delta rule of a call as plain pointers, and the arithmetic that kernels share:
// normalised queries and keys, decay and beta; the gated norm.
//
// Used by all kernels of this folder. The functions give the bits of
// ops/cpu/delta/kernels_impl.h if the file is compiled without contraction. Thread rule: device
// code.
#pragma once

#include <cstdint>

#include "ops/cuda/common.cuh"
#include "ops/cuda/delta/sequence_part.cuh"
#include "ops/portable_math.h"

namespace sluice::cuda {

// DeltaRuleArgs as plain pointers.
struct RuleCall {
  const float* mixed;  // [num_rows][num_channels]
  const float* gates;  // [num_rows][2][num_v_heads]
  const float* a_log;
  const float* dt_bias;
  float* out;  // [num_rows][num_v_heads][v_dim]
  PassRows rows;
  DeltaStates states;
};

// Lanes of a warp that normalise one vector: each has a partial sum, as on the CPU.
inline constexpr int kNormLanes = 16;

// Writes x[n] * scale / sqrt(sum x^2 + 1e-6) to `out`, if `writes`. All 16 lanes that share a
// vector call it together with the rest of their warp.
__device__ inline void normalize(const float* x, int32_t n, float scale, int lane, bool writes,
                                 float* out) {
  constexpr int kEach = kMaxCudaKDim / kNormLanes;
  constexpr float kEps = 1e-6f;
  float values[kEach];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + i * kNormLanes;
    values[i] = at < n ? x[at] : 0.0f;
    sum += values[i] * values[i];
  }
  const float factor = scale / sqrtf(group_sum<kNormLanes>(sum) + kEps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = lane + i * kNormLanes;
    if (writes && at < n) out[at] = values[i] * factor;
  }
}

// The logarithm of the decay of a value head in a row, at most 0. softplus keeps the bits of a
// small gate (ops/portable_math.h): with a decay near 1 they say how long a state lasts.
__device__ inline float log_decay(const RuleCall& call, int32_t row, int32_t v_head) {
  const int32_t num_v_heads = call.states.shape.num_v_heads;
  const float* gates = call.gates + static_cast<int64_t>(row) * 2 * num_v_heads;
  const float a = gates[num_v_heads + v_head] + call.dt_bias[v_head];
  return -fast_exp(call.a_log[v_head]) * fast_softplus(a);
}

// The share of a value that a step writes, 0 to 1.
__device__ inline float beta_of(const RuleCall& call, int32_t row, int32_t v_head) {
  const int32_t num_v_heads = call.states.shape.num_v_heads;
  return fast_sigmoid(call.gates[static_cast<int64_t>(row) * 2 * num_v_heads + v_head]);
}

// x sigmoid(x), with the exponential of the CPU.
__device__ inline float silu_of(float x) { return x / (1.0f + fast_exp(-x)); }

// Lanes of a head whose output is normalised: each has a partial sum, as on the CPU.
inline constexpr int kHeadLanes = 16;

// An element of the gated norm; `scale`: 1 / sqrt(mean x^2 + eps).
__device__ inline uint16_t normed(float x, float scale, float weight, uint16_t gate_bits) {
  return float_to_bf16(weight * (x * scale) * silu_of(bf16_to_float(gate_bits)));
}

}  // namespace sluice::cuda
