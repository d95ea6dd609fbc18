// Decode attention, second phase: folds what the windows came to, in order of position.
//
// Used by attention_decode.cc. The fold is from the left, one window after the other, starting from
// the carried state: a walk cut between two windows is then the same arithmetic as one that is not.
// Bound: latency. A step of the fold would be two exponentials and a multiply-add behind each
// other; but maxima may be taken in any order, so the running maxima of a stretch of windows are
// found by a scan, all factors at once, and only one multiply-add per window is left in the chain.
// A block folds 32 channels of one query head; all its threads fetch the next stretch while one
// warp folds channels and one the sum. Up to 64 windows have a kernel of their own, which needs no
// barrier. One H200, 2026-11-21, with the launch: 3.0 us for 128 windows, 7.5 for 512 of 32 heads.
#include <algorithm>

#include "ops/cuda/attention_decode_fold.cuh"
#include "ops/cuda/attention_decode_kernels.h"
#include "ops/cuda/common_launch.cuh"

namespace sluice::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kChannels = kWarpThreads;  // of a block
constexpr int kLoadsPerWindow = kChannels / 4;
constexpr int kMostFewWindows = 64;  // that each warp has the steps of; with 128 it was slower

// A stretch of as many windows as there are threads.
struct Stretch {
  float4 (*acc)[kLoadsPerWindow];
  float* keep;  // and the others: of the steps
  float* sum;
  float* weight;
  float* max;
};
constexpr size_t kStretchBytes = (kChannels + 4) * sizeof(float);  // per window

__device__ inline Stretch make_stretch() {
  extern __shared__ float4 shared[];
  const int32_t num_windows = blockDim.x;
  Stretch stretch;
  stretch.acc = reinterpret_cast<float4(*)[kLoadsPerWindow]>(shared);
  stretch.keep = reinterpret_cast<float*>(shared + num_windows * kLoadsPerWindow);
  stretch.sum = stretch.keep + num_windows;
  stretch.weight = stretch.sum + num_windows;
  stretch.max = stretch.weight + num_windows;
  return stretch;
}

// The largest value of threads 0 to this one, and `before`.
__device__ inline float max_so_far(float value, float before, float* shared) {
  const int32_t warp = threadIdx.x / kWarpThreads;
  value = max_of_lanes_so_far(value);
  shared[threadIdx.x] = value;
  __syncthreads();
  value = fmaxf(value, before);
  for (int32_t w = 0; w < warp; ++w) value = fmaxf(value, shared[w * kWarpThreads + 31]);
  __syncthreads();
  shared[threadIdx.x] = value;
  __syncthreads();
  return value;
}

// Steps of a stretch; `own` is what this thread's window came to, `max` the running maximum before
// the stretch.
__device__ inline void make_factors(float2 own, float max, const Stretch& stretch) {
  const int32_t i = threadIdx.x;
  const float after = max_so_far(own.x, max, stretch.max);
  const FoldStep step = fold_step(own, i == 0 ? max : stretch.max[i - 1], after);
  stretch.weight[i] = step.weight;
  stretch.keep[i] = step.keep;
  stretch.sum[i] = step.sum;
  __syncthreads();
}

// One block's share of the windows of a round.
struct Windows {
  const float2* max_sums;
  const float* acc;  // of the block's first channel
  int32_t count;
  int32_t most;  // that there is memory of, known before the count is
  int32_t head_dim;
  int32_t num_channels;  // of the block
};

// Loads this thread's pieces of acc of windows [first, first + threads): 8 pieces of 16 bytes are
// neighbours. What nothing was written to is loaded too, and not used.
__device__ inline void load_stretch(const Windows& windows, int32_t first, float2& own,
                                    float4 (&acc)[kLoadsPerWindow]) {
  const int32_t num_threads = blockDim.x;
  const int32_t piece = threadIdx.x % kLoadsPerWindow;
#pragma unroll
  for (int i = 0; i < kLoadsPerWindow; ++i) {
    const int32_t window = first + (i * num_threads + static_cast<int32_t>(threadIdx.x)) / 8;
    acc[i] = {};
    if (window < windows.most && piece * 4 < windows.num_channels) {
      acc[i] = *reinterpret_cast<const float4*>(
          windows.acc + static_cast<int64_t>(window) * windows.head_dim + piece * 4);
    }
  }
  own = nothing_visible();
  if (first + static_cast<int32_t>(threadIdx.x) < windows.most) {
    own = windows.max_sums[first + threadIdx.x];
  }
}

// Puts weighted pieces where the folding warp finds them.
__device__ inline void store_stretch(const float4 (&acc)[kLoadsPerWindow], const Stretch& stretch) {
  const int32_t piece = threadIdx.x % kLoadsPerWindow;
#pragma unroll
  for (int i = 0; i < kLoadsPerWindow; ++i) {
    const int32_t window = (i * blockDim.x + threadIdx.x) / 8;
    const float weight = stretch.weight[window];
    stretch.acc[window][piece] = {weighted(acc[i].x, weight), weighted(acc[i].y, weight),
                                  weighted(acc[i].z, weight), weighted(acc[i].w, weight)};
  }
}

// The chain of one multiply-add a window. A stretch is a multiple of four windows, of which those
// behind the last change nothing.
__device__ inline void fold_acc(const Stretch& stretch, int32_t count, float& acc) {
  const float* added = &stretch.acc[0][0].x + threadIdx.x % kWarpThreads;
  const auto* keeps = reinterpret_cast<const float4*>(stretch.keep);
#pragma unroll 4
  for (int32_t w = 0; w < count; w += 4) {
    const float4 keep = keeps[w / 4];
    acc = __fmaf_rn(acc, keep.x, added[w * kChannels]);
    acc = __fmaf_rn(acc, keep.y, added[(w + 1) * kChannels]);
    acc = __fmaf_rn(acc, keep.z, added[(w + 2) * kChannels]);
    acc = __fmaf_rn(acc, keep.w, added[(w + 3) * kChannels]);
  }
}
__device__ inline void fold_sum(const Stretch& stretch, int32_t count, float& sum) {
  const auto* keeps = reinterpret_cast<const float4*>(stretch.keep);
  const auto* sums = reinterpret_cast<const float4*>(stretch.sum);
#pragma unroll 4
  for (int32_t w = 0; w < count; w += 4) {
    const float4 keep = keeps[w / 4];
    const float4 added = sums[w / 4];
    sum = __fmaf_rn(sum, keep.x, added.x);
    sum = __fmaf_rn(sum, keep.y, added.y);
    sum = __fmaf_rn(sum, keep.z, added.z);
    sum = __fmaf_rn(sum, keep.w, added.w);
  }
}

// Folds all windows: the first warp the channels, the second the sum. The channel counts in the
// first warp only. Returns the maximum.
__device__ inline float fold_all(const Windows& windows, float max, Channel& channel) {
  const Stretch stretch = make_stretch();
  const auto num_threads = static_cast<int32_t>(blockDim.x);
  const int32_t warp = threadIdx.x / kWarpThreads;
  float2 own;
  float4 acc[kLoadsPerWindow];
  load_stretch(windows, 0, own, acc);
  for (int32_t first = 0; first < windows.count; first += num_threads) {
    const int32_t count = min(windows.count - first, num_threads);
    if (static_cast<int32_t>(threadIdx.x) >= count) own = nothing_visible();
    make_factors(own, max, stretch);
    store_stretch(acc, stretch);
    max = stretch.max[count - 1];
    __syncthreads();
    load_stretch(windows, first + num_threads, own, acc);
    if (warp == 0) fold_acc(stretch, count, channel.acc);
    if (warp == 1) fold_sum(stretch, count, channel.sum);
    __syncthreads();
  }
  if (warp == 1) stretch.sum[0] = channel.sum;
  __syncthreads();
  channel.sum = stretch.sum[0];
  return max;
}

// How many windows of the round came to something that is to be folded.
__device__ inline int32_t num_windows_of(const DecodeParams& p, const DecodeRow& row) {
  if (p.num_found == nullptr) return min(row.num_windows - p.first_window, p.num_windows);
  return p.num_found[blockIdx.y * p.num_kv_heads + blockIdx.x / p.group];
}

// Whether the head's other blocks have been here, and thus have read the state's maximum and sum,
// which all of them need and one of them may now overwrite. The counter is 0 again afterwards.
__device__ inline bool is_last_to_come(const DecodeParams& p) {
  __threadfence();
  uint32_t* num_arrived = p.num_arrived + blockIdx.y * p.num_q_heads + blockIdx.x;
  return atomicInc(num_arrived, gridDim.z - 1) == gridDim.z - 1;
}

// grid: query heads x sequences of the round x pieces of 32 channels.
__global__ void __launch_bounds__(kMaxThreads) decode_combine(const DecodeParams p) {
  let_next_kernel_start();
  const DecodeRow row = decode_row(p, p.first_seq + blockIdx.y);
  wait_for_earlier_work();
  if (row.row < 0) return;
  const int32_t first_channel = blockIdx.z * kChannels;
  const int32_t num_channels = min(p.head_dim - first_channel, kChannels);
  const int32_t channel_index = first_channel + static_cast<int32_t>(threadIdx.x);
  const bool is_channel = static_cast<int32_t>(threadIdx.x) < num_channels;
  float max = -INFINITY;
  Channel channel;
  if (starts_from_state(p, row)) {
    const int64_t index = state_index(p, p.from, blockIdx.y, row.row, blockIdx.x);
    max = p.from.max[index];
    channel.sum = p.from.sum[index];
    if (is_channel) channel.acc = p.from.acc[index * p.head_dim + channel_index];
  }
  const int64_t first_partial = partial_index(p, blockIdx.y, blockIdx.x, 0);
  const Windows windows{.max_sums = p.partial_max_sum + first_partial,
                        .acc = p.partial_acc + first_partial * p.head_dim + first_channel,
                        .count = num_windows_of(p, row),
                        .most = p.most_found,
                        .head_dim = p.head_dim,
                        .num_channels = num_channels};
  max = fold_all(windows, max, channel);
  if (!is_channel) return;
  if (p.out != nullptr) {
    const int64_t index = row.row * p.num_q_heads + blockIdx.x;
    p.out[index * p.head_dim + channel_index] = output_of(channel);
    return;
  }
  const int64_t index = state_index(p, p.to, blockIdx.y, row.row, blockIdx.x);
  p.to.acc[index * p.head_dim + channel_index] = channel.acc;
  if (threadIdx.x == 0 && is_last_to_come(p)) {
    p.to.max[index] = max;
    p.to.sum[index] = channel.sum;
  }
}

// How the records of this lane's windows are added up: one is the window, two are its halves.
template <int kRecords>
struct Records {
  HalfWeights weights;

  __device__ __forceinline__ float2 add(const float2 (&max_sums)[kRecords]) {
    if constexpr (kRecords == 1) return max_sums[0];
    if constexpr (kRecords == 2) return sum_of_halves(max_sums[0], max_sums[1], weights);
  }
  // Of a channel of the window that `lane` has. All lanes call.
  __device__ __forceinline__ float add(const float (&accs)[kRecords], int32_t lane) const {
    if constexpr (kRecords == 1) return accs[0];
    if constexpr (kRecords == 2) {
      const HalfWeights own = {__shfl_sync(kFullWarp, weights.first, lane),
                               __shfl_sync(kFullWarp, weights.second, lane)};
      return sum_of_halves(accs[0], accs[1], own);
    }
  }
};

// What a thread of decode_combine_few asks for: windows 32 g + lane, and a channel of all windows.
template <int kWindows, int kRecords>
struct FewLoads {
  static constexpr int kGroups = (kWindows + kWarpThreads - 1) / kWarpThreads;
  float2 max_sums[kGroups][kRecords];
  float accs[kWindows][kRecords];
};

// Windows that the row does not see are loaded, too, and not used.
template <int kWindows, int kRecords>
__device__ __forceinline__ void load_few(int32_t most, const float2* max_sums, const float* accs,
                                         bool is_channel, int32_t head_dim,
                                         FewLoads<kWindows, kRecords>& loads) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
#pragma unroll
  for (int g = 0; g < FewLoads<kWindows, kRecords>::kGroups; ++g) {
    const int32_t window = g * kWarpThreads + lane;
#pragma unroll
    for (int r = 0; r < kRecords; ++r) {
      loads.max_sums[g][r] = window < most ? max_sums[window * kRecords + r] : nothing_visible();
    }
  }
#pragma unroll
  for (int i = 0; i < kWindows; ++i) {
#pragma unroll
    for (int r = 0; r < kRecords; ++r) {
      loads.accs[i][r] = is_channel && i < most ? accs[(i * kRecords + r) * head_dim] : 0.0f;
    }
  }
}

// The same fold for up to kWindows windows: each warp finds all steps by itself, so there is no
// barrier, and a thread asks for all that it folds before it waits. kHeadDim 0: as p says, with
// more instructions before each load.
// grid: query heads x sequences of the round; a thread is a channel.
template <int kWindows, int kRecords, int kHeadDim>
__global__ void __launch_bounds__(kMaxThreads) decode_combine_few(const DecodeParams p) {
  using Loads = FewLoads<kWindows, kRecords>;
  let_next_kernel_start();
  const DecodeRow row = decode_row(p, p.first_seq + blockIdx.y);
  const int32_t lane = threadIdx.x % kWarpThreads;
  const auto number = static_cast<int32_t>(threadIdx.x);
  const int32_t head_dim = kHeadDim > 0 ? kHeadDim : p.head_dim;
  const bool is_channel = number < head_dim;
  const int64_t first_partial = partial_index(p, blockIdx.y, blockIdx.x, 0);
  const float2* max_sums = p.partial_max_sum + first_partial;
  const float* accs = p.partial_acc + first_partial * head_dim + number;
  keep_here(max_sums);
  keep_here(accs);
  wait_for_earlier_work();
  Loads loads;
  load_few(p.most_found, max_sums, accs, is_channel, head_dim, loads);
  if (row.row < 0) return;
  const int32_t count = num_windows_of(p, row);
  float max = -INFINITY;
  Channel channel;
  if (starts_from_state(p, row)) {
    const int64_t index = state_index(p, p.from, blockIdx.y, row.row, blockIdx.x);
    max = p.from.max[index];
    channel.sum = p.from.sum[index];
    if (is_channel) channel.acc = p.from.acc[index * head_dim + number];
  }
  Records<kRecords> records[Loads::kGroups];
  FoldStep steps[Loads::kGroups];
#pragma unroll
  for (int g = 0; g < Loads::kGroups; ++g) {
    float2 own = records[g].add(loads.max_sums[g]);
    if (g * kWarpThreads + lane >= count) own = nothing_visible();
    const float after = fmaxf(max_of_lanes_so_far(own.x), max);
    const float before = __shfl_up_sync(kFullWarp, after, 1);
    steps[g] = fold_step(own, lane == 0 ? max : before, after);
    max = __shfl_sync(kFullWarp, after, kWarpThreads - 1);
  }
  // Windows behind the last change nothing. To leave at the last one would cost more: a branch
  // keeps the next window's shuffles from being under way.
#pragma unroll
  for (int window = 0; window < kWindows; ++window) {
    const int g = window / kWarpThreads;
    const int of_lane = window % kWarpThreads;
    const float keep = __shfl_sync(kFullWarp, steps[g].keep, of_lane);
    const float sum = __shfl_sync(kFullWarp, steps[g].sum, of_lane);
    const float weight = __shfl_sync(kFullWarp, steps[g].weight, of_lane);
    const float acc = records[g].add(loads.accs[window], of_lane);
    channel.acc = __fmaf_rn(channel.acc, keep, weighted(acc, weight));
    channel.sum = __fmaf_rn(channel.sum, keep, sum);
  }
  if (p.out == nullptr) __syncthreads();  // the state has been read
  if (!is_channel) return;
  if (p.out != nullptr) {
    p.out[(row.row * p.num_q_heads + blockIdx.x) * head_dim + number] = output_of(channel);
    return;
  }
  const int64_t index = state_index(p, p.to, blockIdx.y, row.row, blockIdx.x);
  p.to.acc[index * head_dim + number] = channel.acc;
  if (number == 0) {
    p.to.max[index] = max;
    p.to.sum[index] = channel.sum;
  }
}

template <int kRecords, int kHeadDim>
void launch_few(CudaStream& stream, const DecodeParams& p) {
  auto* kernel = p.most_found <= 8    ? decode_combine_few<8, kRecords, kHeadDim>
                 : p.most_found <= 16 ? decode_combine_few<16, kRecords, kHeadDim>
                                      : decode_combine_few<32, kRecords, kHeadDim>;
  if constexpr (kRecords == 1) {
    if (p.most_found > 32) kernel = decode_combine_few<kMostFewWindows, kRecords, kHeadDim>;
  }
  const int32_t warps = (p.head_dim + kWarpThreads - 1) / kWarpThreads;
  launch_early(
      stream, kernel,
      {.grid = dim3(static_cast<unsigned>(p.num_q_heads), static_cast<unsigned>(p.num_seqs)),
       .block = dim3(static_cast<unsigned>(warps * kWarpThreads))},
      p);
}

template <int kRecords>
void launch_few(CudaStream& stream, const DecodeParams& p) {
  p.head_dim == 128 ? launch_few<kRecords, 128>(stream, p) : launch_few<kRecords, 0>(stream, p);
}

}  // namespace

void launch_decode_combine(CudaStream& stream, const DecodeParams& p) {
  if (p.records == 2) return launch_few<2>(stream, p);
  if (p.most_found <= kMostFewWindows) return launch_few<1>(stream, p);
  const dim3 grid(static_cast<unsigned>(p.num_q_heads), static_cast<unsigned>(p.num_seqs),
                  static_cast<unsigned>((p.head_dim + kChannels - 1) / kChannels));
  // As many windows at once as there are, up to a limit.
  const int32_t warps = (p.most_found + kWarpThreads - 1) / kWarpThreads;
  const int32_t threads = std::clamp(warps * kWarpThreads, kWarpThreads, kMaxThreads);
  launch_early(stream, decode_combine,
               {.grid = grid,
                .block = dim3(static_cast<unsigned>(threads)),
                .shared_bytes = threads * kStretchBytes},
               p);
}

}  // namespace sluice::cuda
