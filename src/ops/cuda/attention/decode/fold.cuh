// One step of the fold of windows into the carried state of decode attention.
//
// Used by attention/decode/combine.cu, whose two kernels must give the same bits:
//   state.acc = state.acc * exp(max - new max) + acc * exp(own max - new max), and so for the sum
// Thread rule: device code.
#pragma once

#include "ops/cuda/attention/decode/window.cuh"

namespace sluice::cuda {

// The largest value of lanes 0 to this one.
__device__ inline float max_of_lanes_so_far(float value) {
  const int32_t lane = threadIdx.x % kWarpThreads;
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const float other = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value = fmaxf(value, other);
  }
  return value;
}

// The factors of one window: state = state * keep + added. A weight below 0 says that nothing was
// visible: then keep is 1 and -0 is added, which changes no number, not even -0.
struct FoldStep {
  float keep;
  float sum;     // what is added to the sum
  float weight;  // of the window's acc
};

// The step of a window with (max, sum) `own`; the running maximum goes from `before` to `after`.
__device__ inline FoldStep fold_step(float2 own, float before, float after) {
  if (shows_nothing(own)) return {1.0f, -0.0f, -1.0f};
  const float reference = reference_of(after);
  const float weight = exp_of_difference(own.x, reference);
  return {exp_of_difference(before, reference), __fmul_rn(own.y, weight), weight};
}

__device__ inline float weighted(float acc, float weight) {
  return weight < 0.0f ? -0.0f : __fmul_rn(acc, weight);
}

// The state of one channel: its acc, and the sum of the head.
struct Channel {
  float acc = 0.0f;
  float sum = 0.0f;
};

// Index of a query head in a state's max and sum; its acc is at head_dim times the index.
__device__ inline int64_t state_index(const DecodeParams& p, const DecodeState& state,
                                      int32_t round_seq, int64_t row, int32_t head) {
  return (state.is_carry ? round_seq : row) * p.num_q_heads + head;
}

// Whether the fold reads p.from. It starts from the empty state in a first call and, unless this is
// a later part of a gathered list, for a run that begins at token 0.
__device__ inline bool starts_from_state(const DecodeParams& p, const DecodeRow& row) {
  return p.from.acc != nullptr && !(p.zero_is_empty && row.kv_begin == 0);
}

// acc / sum in bf16; 0 for a row that saw no token.
__device__ inline uint16_t output_of(const Channel& channel) {
  return float_to_bf16(channel.sum == 0.0f ? 0.0f : __fdiv_rn(channel.acc, channel.sum));
}

}  // namespace sluice::cuda
