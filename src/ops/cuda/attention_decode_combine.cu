// Decode attention, second phase: folds what the windows came to, in order of position.
//
// Used by attention_decode.cc. The fold is from the left, one window after the other, starting from
// the carried state: a walk cut between two windows is then the same arithmetic as one that is not.
// Bound: latency. A step of the fold would be two exponentials and a multiply-add behind each
// other; but maxima may be taken in any order, so all running maxima of a stretch of windows are
// found by a scan, all factors at once, and only one multiply-add per window is left in the chain.
#include "ops/cuda/attention_decode_kernels.h"
#include "ops/cuda/attention_decode_window.cuh"
#include "ops/cuda/common_launch.cuh"

namespace sluice::cuda {
namespace {

constexpr int kAhead = 16;  // windows whose acc is loaded before the first is used

// A stretch of as many windows as there are threads:
// state = state * keep + window * weight; a negative weight: nothing was visible in the window.
struct Stretch {
  float max[256];
  float keep[256];
  float weight[256];
  float sum[256];
};

// The largest value of threads 0 to this one, and `before`.
__device__ inline float max_so_far(float value, float before, float* shared) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const float other = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value = fmaxf(value, other);
  }
  shared[threadIdx.x] = value;
  __syncthreads();
  value = fmaxf(value, before);
  for (int32_t w = 0; w < warp; ++w) value = fmaxf(value, shared[w * kWarpThreads + 31]);
  __syncthreads();
  shared[threadIdx.x] = value;
  __syncthreads();
  return value;
}

// Factors of windows [first, first + blockDim.x); `max` is the running maximum before them.
__device__ inline void make_factors(const float2* max_sums, int32_t first, int32_t count, float max,
                                    Stretch& stretch) {
  const int32_t i = threadIdx.x;
  const float2 own = i < count ? max_sums[first + i] : float2{-INFINITY, 0.0f};
  const float after = max_so_far(own.x, max, stretch.max);
  const float before = i == 0 ? max : stretch.max[i - 1];
  const float reference = reference_of(after);
  const bool is_empty = own.x == -INFINITY && own.y == 0.0f;
  stretch.keep[i] = exp_of_difference(before, reference);
  stretch.weight[i] = is_empty ? -1.0f : exp_of_difference(own.x, reference);
  stretch.sum[i] = own.y;
  __syncthreads();
}

// One channel of the state; `acc` is this channel of the stretch's first window.
struct Channel {
  float acc = 0.0f;
  float sum = 0.0f;
};

__device__ inline void fold(const Stretch& stretch, int32_t count, const float* acc,
                            int32_t head_dim, bool is_channel, Channel& channel) {
  for (int32_t first = 0; first < count; first += kAhead) {
    float loaded[kAhead];
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const int32_t w = first + i;
      const bool is_wanted = is_channel && w < count && !(stretch.weight[w] < 0.0f);
      loaded[i] = is_wanted ? acc[static_cast<int64_t>(w) * head_dim] : 0.0f;
    }
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const int32_t w = first + i;
      if (w >= count || stretch.weight[w] < 0.0f) continue;
      const float keep = stretch.keep[w];
      const float weight = stretch.weight[w];
      channel.acc = __fmaf_rn(channel.acc, keep, __fmul_rn(loaded[i], weight));
      channel.sum = __fmaf_rn(channel.sum, keep, __fmul_rn(stretch.sum[w], weight));
    }
  }
}

__device__ inline int64_t state_index(const DecodeParams& p, const DecodeState& state,
                                      int64_t row) {
  return (state.is_carry ? blockIdx.y : row) * p.num_q_heads + blockIdx.x;
}

// grid: query heads x sequences of the round; threads: channels, rounded up to warps.
__global__ void __launch_bounds__(256) decode_combine(const DecodeParams p) {
  let_next_kernel_start();
  wait_for_earlier_work();
  __shared__ Stretch stretch;
  const int32_t channel_index = threadIdx.x;
  const bool is_channel = channel_index < p.head_dim;
  const DecodeRow row = decode_row(p, p.first_seq + blockIdx.y);
  if (row.row < 0) return;
  float max = -INFINITY;
  Channel channel;
  if (p.from.acc != nullptr && !(p.zero_is_empty && row.kv_begin == 0)) {
    const int64_t index = state_index(p, p.from, row.row);
    max = p.from.max[index];
    channel.sum = p.from.sum[index];
    if (is_channel) channel.acc = p.from.acc[index * p.head_dim + channel_index];
  }
  const int64_t first_partial = partial_index(p, blockIdx.y, blockIdx.x, 0);
  const int32_t num_windows = min(row.num_windows - p.first_window, p.num_windows);
  const int32_t num_threads = blockDim.x;
  for (int32_t first = 0; first < num_windows; first += num_threads) {
    const int32_t count = min(num_windows - first, num_threads);
    make_factors(p.partial_max_sum + first_partial, first, count, max, stretch);
    const float* acc = p.partial_acc + (first_partial + first) * p.head_dim + channel_index;
    fold(stretch, count, acc, p.head_dim, is_channel, channel);
    max = stretch.max[count - 1];
    __syncthreads();
  }
  if (p.out != nullptr) {
    const float value = channel.sum == 0.0f ? 0.0f : __fdiv_rn(channel.acc, channel.sum);
    const int64_t index = row.row * p.num_q_heads + blockIdx.x;
    if (is_channel) p.out[index * p.head_dim + channel_index] = float_to_bf16(value);
    return;
  }
  const int64_t index = state_index(p, p.to, row.row);
  if (is_channel) p.to.acc[index * p.head_dim + channel_index] = channel.acc;
  if (channel_index == 0) {
    p.to.max[index] = max;
    p.to.sum[index] = channel.sum;
  }
}

}  // namespace

void launch_decode_combine(CudaStream& stream, const DecodeParams& p) {
  const dim3 grid(static_cast<unsigned>(p.num_q_heads), static_cast<unsigned>(p.num_seqs));
  const int32_t threads = (p.head_dim + kWarpThreads - 1) / kWarpThreads * kWarpThreads;
  launch_early(stream, decode_combine,
               {.grid = grid, .block = dim3(static_cast<unsigned>(threads))}, p);
}

}  // namespace sluice::cuda
