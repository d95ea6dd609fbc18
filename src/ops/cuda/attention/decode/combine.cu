// Decode attention, second phase: folds the results of the windows, in order of position.
//
// Used by attention/decode/decode.cc. The fold is from the left, one window after the other,
// starting from the carried state: a walk cut between two windows is then the same arithmetic as
// one that is not. Bound: latency. A step of the fold would be two exponentials and a multiply-add
// in sequence; but maxima may be taken in any order, so a scan computes the running maxima of a
// stretch of windows, then all factors are computed at once, and only one multiply-add per window
// remains in the chain. Tile: a block folds 32 channels of one query head: each warp loads 32
// windows of a stretch, weights and transposes them, then one warp folds the channels and one the
// sum. Up to 64 windows have a kernel of their own without barriers. Share of a call:
// docs/kernels/cuda_attention.md.
#include <algorithm>

#include "device/cuda/early_launch.cuh"
#include "ops/cuda/attention/decode/fold.cuh"
#include "ops/cuda/attention/decode/kernels.h"

namespace sluice::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kChannels = kWarpThreads;  // of a block
constexpr int kMostFewWindows = 64;      // of decode_combine_few; with 128 it was slower

// A stretch of as many windows as there are threads. Windows of a channel lie side by side, so that
// the chain loads four at a time; rows are padded by 16 bytes against bank conflicts.
struct Stretch {
  float* acc;   // [channel][window], weighted
  float* keep;  // and the others: of the steps
  float* sum;
  float* weight;
  float* warp_max;
  int32_t pitch;
};
constexpr int kPadding = 4;
constexpr size_t stretch_bytes(size_t num_windows) {
  return ((num_windows + kPadding) * kChannels + 3 * num_windows + kMaxThreads / kWarpThreads) *
         sizeof(float);
}

// Divides the block's dynamic shared memory, stretch_bytes of it.
__device__ inline Stretch make_stretch() {
  extern __shared__ float4 shared[];
  const auto num_windows = static_cast<int32_t>(blockDim.x);
  Stretch stretch;
  stretch.pitch = num_windows + kPadding;
  stretch.acc = reinterpret_cast<float*>(shared);
  stretch.keep = stretch.acc + stretch.pitch * kChannels;
  stretch.sum = stretch.keep + num_windows;
  stretch.weight = stretch.sum + num_windows;
  stretch.warp_max = stretch.weight + num_windows;
  return stretch;
}

// The windows of a sequence and query head, as one lane reads them.
template <int kHeadDim>
struct Windows {
  const float2* max_sums;
  const float* acc;  // of this lane's channel
  int32_t most;      // windows that have memory
  int32_t other_head_dim;
  bool is_channel;

  __device__ int32_t head_dim() const { return kHeadDim > 0 ? kHeadDim : other_head_dim; }
};

// The loads of a thread for one stretch: (max, sum) of its own window, and its lane's channel of
// its warp's 32 windows.
struct Loads {
  float2 own;
  float acc[kWarpThreads];
};

// Loads windows without a result, too; they are not used. (max, sum) first, since they are waited
// for first.
template <int kHeadDim>
__device__ inline void load_stretch(const Windows<kHeadDim>& windows, int32_t first, Loads& loads) {
  const int32_t own = first + static_cast<int32_t>(threadIdx.x);
  loads.own = own < windows.most ? windows.max_sums[own] : nothing_visible();
  const int32_t of_warp = own - static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const float* acc = windows.acc + static_cast<int64_t>(of_warp) * windows.head_dim();
#pragma unroll
  for (int i = 0; i < kWarpThreads; ++i) {
    const bool is_there = windows.is_channel && of_warp + i < windows.most;
    loads.acc[i] = is_there ? acc[i * windows.head_dim()] : 0.0f;
  }
}

// Computes the steps of a stretch; `own` is (max, sum) of this thread's window. `max` is the
// running maximum before the stretch, and after it on return.
__device__ inline void make_steps(float2 own, float& max, const Stretch& stretch) {
  const int32_t warp = threadIdx.x / kWarpThreads;
  const int32_t lane = threadIdx.x % kWarpThreads;
  const auto num_warps = static_cast<int32_t>(blockDim.x / kWarpThreads);
  const float of_warp = max_of_lanes_so_far(own.x);
  if (lane == kWarpThreads - 1) stretch.warp_max[warp] = of_warp;
  __syncthreads();
  // The running maximum before this warp's windows; `max` becomes that after the stretch.
  float before = max;
  for (int32_t w = 0; w < num_warps; ++w) {
    if (w == warp) before = max;
    max = fmaxf(max, stretch.warp_max[w]);
  }
  const float after = fmaxf(before, of_warp);
  const float of_lane_before = __shfl_up_sync(kFullWarp, after, 1);
  const FoldStep step = fold_step(own, lane == 0 ? before : of_lane_before, after);
  stretch.weight[threadIdx.x] = step.weight;
  stretch.keep[threadIdx.x] = step.keep;
  stretch.sum[threadIdx.x] = step.sum;
}

// Writes this warp's windows, weighted, to shared memory for the folding warp. Called after
// make_steps.
__device__ inline void store_weighted(const float (&acc)[kWarpThreads], const Stretch& stretch) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t of_warp = threadIdx.x - lane;
  const auto* weights = reinterpret_cast<const float4*>(stretch.weight + of_warp);
  auto* to = reinterpret_cast<float4*>(stretch.acc + lane * stretch.pitch + of_warp);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kWarpThreads / 4; ++i) {
    const float4 weight = weights[i];
    to[i] = {weighted(acc[4 * i], weight.x), weighted(acc[4 * i + 1], weight.y),
             weighted(acc[4 * i + 2], weight.z), weighted(acc[4 * i + 3], weight.w)};
  }
}

// The chain of one multiply-add a window, of a channel or of the sum. Windows after the last of a
// stretch change nothing.
__device__ inline void fold_chain(const float* keep, const float* added, int32_t count,
                                  float& value) {
  constexpr int32_t kAtOnce = 16;  // windows folded while the next 16 are loaded
  const auto* keeps = reinterpret_cast<const float4*>(keep);
  const auto* addeds = reinterpret_cast<const float4*>(added);
  float4 next_keeps[kAtOnce / 4];
  float4 next_addeds[kAtOnce / 4];
  const auto load = [&](int32_t window) {
#pragma unroll
    for (int i = 0; i < kAtOnce / 4; ++i) {
      next_keeps[i] = keeps[window / 4 + i];
      next_addeds[i] = addeds[window / 4 + i];
    }
  };
  load(0);
#pragma unroll 1
  for (int32_t window = 0; window < count; window += kAtOnce) {
    float4 now_keeps[kAtOnce / 4];
    float4 now_addeds[kAtOnce / 4];
#pragma unroll
    for (int i = 0; i < kAtOnce / 4; ++i) {
      now_keeps[i] = next_keeps[i];
      now_addeds[i] = next_addeds[i];
    }
    if (window + kAtOnce < count) load(window + kAtOnce);
#pragma unroll
    for (int i = 0; i < kAtOnce / 4; ++i) {
      value = __fmaf_rn(value, now_keeps[i].x, now_addeds[i].x);
      value = __fmaf_rn(value, now_keeps[i].y, now_addeds[i].y);
      value = __fmaf_rn(value, now_keeps[i].z, now_addeds[i].z);
      value = __fmaf_rn(value, now_keeps[i].w, now_addeds[i].w);
    }
  }
}

// Folds `count` windows, of which `loads` has the first stretch: the first warp folds the channels,
// the second the sum. `channel.acc` is valid in the first warp only. Returns the maximum.
template <int kHeadDim>
__device__ inline float fold_all(const Windows<kHeadDim>& windows, int32_t count, Loads& loads,
                                 float max, Channel& channel) {
  const Stretch stretch = make_stretch();
  const auto num_threads = static_cast<int32_t>(blockDim.x);
  const auto number = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = number / kWarpThreads;
  for (int32_t first = 0; first < count; first += num_threads) {
    if (first + number >= count) loads.own = nothing_visible();
    make_steps(loads.own, max, stretch);
    store_weighted(loads.acc, stretch);
    __syncthreads();
    const bool is_last = first + num_threads >= count;
    if (!is_last) load_stretch(windows, first + num_threads, loads);
    const int32_t in_stretch = min(count - first, num_threads);
    const float* acc = stretch.acc + number % kWarpThreads * stretch.pitch;
    if (warp == 0) fold_chain(stretch.keep, acc, in_stretch, channel.acc);
    if (warp == 1) fold_chain(stretch.keep, stretch.sum, in_stretch, channel.sum);
    if (!is_last) __syncthreads();  // the stretch has been read
  }
  // The sum goes from the second warp to all threads.
  if (warp == 1) stretch.warp_max[0] = channel.sum;
  __syncthreads();
  channel.sum = stretch.warp_max[0];
  return max;
}

// The number of windows of the round that have a result.
__device__ inline int32_t num_windows_of(const DecodeParams& p, const DecodeRow& row) {
  if (p.num_found == nullptr) return min(row.num_windows - p.first_window, p.num_windows);
  return p.num_found[blockIdx.y * p.num_kv_heads + blockIdx.x / p.group];
}

// Whether the head's other blocks have arrived, and thus have read the state's maximum and sum: all
// of them need these, and the last block overwrites them. The counter is 0 again afterwards.
__device__ inline bool is_last_to_come(const DecodeParams& p) {
  __threadfence();
  uint32_t* num_arrived = p.num_arrived + blockIdx.y * p.num_q_heads + blockIdx.x;
  return atomicInc(num_arrived, gridDim.z - 1) == gridDim.z - 1;
}

// grid: query heads x sequences of the round x pieces of 32 channels.
template <int kHeadDim>
__global__ void __launch_bounds__(kMaxThreads) decode_combine(const DecodeParams p) {
  let_next_kernel_start();
  const DecodeRow row = decode_row(p, p.first_seq + blockIdx.y);
  const auto number = static_cast<int32_t>(threadIdx.x);
  const int32_t channel_index = static_cast<int32_t>(blockIdx.z) * kChannels + number;
  // Every warp loads the block's 32 channels, of other windows; threads of the first warp own one.
  const int32_t of_lane = blockIdx.z * kChannels + number % kWarpThreads;
  const bool is_channel = number < kChannels && channel_index < p.head_dim;
  const int64_t first_partial = partial_index(p, blockIdx.y, blockIdx.x, 0);
  const Windows<kHeadDim> windows{.max_sums = p.partial_max_sum + first_partial,
                                  .acc = p.partial_acc + first_partial * p.head_dim + of_lane,
                                  .most = p.num_windows,
                                  .other_head_dim = p.head_dim,
                                  .is_channel = of_lane < p.head_dim};
  keep_here(windows.max_sums);
  keep_here(windows.acc);
  wait_for_earlier_work();
  Loads loads;
  load_stretch(windows, 0, loads);  // before the test of the row, which may still be loading
  if (row.row < 0) return;
  float max = -INFINITY;
  Channel channel;
  if (starts_from_state(p, row)) {
    const int64_t index = state_index(p, p.from, blockIdx.y, row.row, blockIdx.x);
    max = p.from.max[index];
    channel.sum = p.from.sum[index];
    if (is_channel) channel.acc = p.from.acc[index * p.head_dim + channel_index];
  }
  max = fold_all(windows, num_windows_of(p, row), loads, max, channel);
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

// Adds up the records of this lane's windows: one record is the window, two are its halves.
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

// The loads of a thread of decode_combine_few: windows 32 g + lane, and a channel of all windows.
template <int kWindows, int kRecords>
struct FewLoads {
  static constexpr int kGroups = (kWindows + kWarpThreads - 1) / kWarpThreads;
  float2 max_sums[kGroups][kRecords];
  float accs[kWindows][kRecords];
};

// Loads windows that the row does not see, too; they are not used.
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

// The same fold for up to kWindows windows: each warp computes all steps itself, so there is no
// barrier, and a thread issues all its loads before it waits. kHeadDim 0: p.head_dim, with more
// instructions before each load.
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
  load_few(p.num_windows, max_sums, accs, is_channel, head_dim, loads);
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
  // A warp scans the maxima of 32 windows at a time, in order of position.
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
  // Windows after the last change nothing. Leaving the loop at the last one would cost more: a
  // branch keeps the next window's shuffles from being issued early.
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

// The smallest kernel that holds the windows: loads and shuffles are unrolled over its size.
template <int kRecords, int kHeadDim>
void launch_few(CudaStream& stream, const DecodeParams& p) {
  auto* kernel = p.num_windows <= 8    ? decode_combine_few<8, kRecords, kHeadDim>
                 : p.num_windows <= 16 ? decode_combine_few<16, kRecords, kHeadDim>
                                       : decode_combine_few<32, kRecords, kHeadDim>;
  if constexpr (kRecords == 1) {
    if (p.num_windows > 32) kernel = decode_combine_few<kMostFewWindows, kRecords, kHeadDim>;
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
  if (p.num_windows <= kMostFewWindows) return launch_few<1>(stream, p);
  const dim3 grid(static_cast<unsigned>(p.num_q_heads), static_cast<unsigned>(p.num_seqs),
                  static_cast<unsigned>((p.head_dim + kChannels - 1) / kChannels));
  // A thread per window, up to kMaxThreads; more windows are folded in several stretches.
  const int32_t warps = (p.num_windows + kWarpThreads - 1) / kWarpThreads;
  const int32_t threads = std::clamp(warps * kWarpThreads, kWarpThreads, kMaxThreads);
  launch_early(stream,
               p.head_dim == 128  ? decode_combine<128>
               : p.head_dim == 64 ? decode_combine<64>
                                  : decode_combine<0>,
               {.grid = grid,
                .block = dim3(static_cast<unsigned>(threads)),
                .shared_bytes = stretch_bytes(static_cast<size_t>(threads))},
               p);
}

}  // namespace sluice::cuda
