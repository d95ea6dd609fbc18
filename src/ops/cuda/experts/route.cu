// The router's choice. Bound: latency; a row is a few hundred numbers, and its products read a
// matrix of half a megabyte.
//
// Up to 16 rows, as of decode, one kernel multiplies and chooses: a cluster of 8 blocks takes up to
// 4 rows, each block multiplies them by its part of the experts, and the first one chooses. Between
// two kernels a step would wait twice. More rows are a matrix product, and then one warp a row.
//
// Lanes hold experts lane, lane + 32, ... in registers. The sum of a softmax is taken by lanes and
// then over them, in a fixed order; of equal probabilities the lowest index wins.
#include <algorithm>
#include <cfloat>

#include "core/error.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/cluster_blocks.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/matmul/skinny.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4;        // of a block that chooses for many rows
constexpr int kMaxPerLane = 16;  // 512 experts

constexpr int kBlocks = 8;  // of a cluster: the portable size
constexpr int kClusterWarps = 16;
constexpr int kClusterRows = 4;
constexpr int kLineBytes = 128;

struct RouteCall {
  const uint16_t* x;
  const uint16_t* router;
  float* scores;
  int32_t* experts;
  float* shares;
  int64_t num_rows;
  int32_t hidden;
  int32_t num_experts;
  int32_t num_slots;
  bool normalize;
};

// Turns the logits of a row into probabilities.
template <int kPerLane>
__device__ inline void softmax(float (&values)[kPerLane], int32_t num_experts, int lane) {
  float largest = -FLT_MAX;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < num_experts) largest = fmaxf(largest, values[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i >= num_experts) continue;
    values[i] = expf(values[i] - largest);
    sum += values[i];
  }
  sum = group_sum<kWarpThreads>(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) values[i] /= sum;
}

// Keys of probabilities in their order: NaN after all others, and 0 for what is not to be chosen.
constexpr uint32_t kNanKey = 1;
__device__ inline uint32_t key_of(float probability) {
  return probability != probability ? kNanKey : __float_as_uint(probability) + 2;
}
__device__ inline float probability_of(uint32_t key) {
  return __uint_as_float(key == kNanKey ? 0x7fc00000u : key - 2);
}

// Chooses from the logits of a row, of which a lane has those of its experts.
template <int kPerLane>
__device__ inline void choose(const RouteCall& call, int64_t row, float (&values)[kPerLane],
                              int lane) {
  softmax(values, call.num_experts, lane);
  uint32_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    keys[i] = expert < call.num_experts ? key_of(values[i]) : 0;
    if (expert < call.num_experts) call.scores[row * call.num_experts + expert] = values[i];
  }
  float chosen_sum = 0.0f;
  float own_share = 0.0f;  // of slot `lane`
  uint32_t own_expert = 0;
  // One after the other: a row has few slots, and a sort of all experts would cost more.
  for (int slot = 0; slot < call.num_slots; ++slot) {
    uint32_t key = 0;
    uint32_t expert = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] > key) expert = static_cast<uint32_t>(lane + 32 * i);
      key = max(key, keys[i]);
    }
    const uint32_t best = __reduce_max_sync(kFullWarp, key);
    const uint32_t chosen = __reduce_min_sync(kFullWarp, key == best ? expert : UINT32_MAX);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (chosen == static_cast<uint32_t>(lane + 32 * i)) keys[i] = 0;
    }
    const float share = probability_of(best);
    chosen_sum += share;
    if (slot != lane) continue;
    own_share = share;
    own_expert = chosen;
  }
  if (lane >= call.num_slots) return;
  const int64_t place = row * call.num_slots + lane;
  call.experts[place] = static_cast<int32_t>(own_expert);
  call.shares[place] = call.normalize ? own_share / chosen_sum : own_share;
}

// Many rows, whose logits are in `scores`.
template <int kPerLane>
__global__ void __launch_bounds__(kWarps* kWarpThreads) choose_rows(const RouteCall call) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  let_next_kernel_start();
  wait_for_earlier_work();
  if (row >= call.num_rows) return;
  float values[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    values[i] = expert < call.num_experts ? call.scores[row * call.num_experts + expert] : 0.0f;
  }
  choose(call, row, values, lane);
}

// Columns of two experts that a lane holds: 8 neighbours of every 256, up to 2,048.
constexpr int kStepColumns = kWarpThreads * 8;
constexpr int kHeldSteps = 8;
using HeldColumns = Bf16x8[2][kHeldSteps];

// Those of experts `first` and `first` + kClusterWarps; zeros where there are none.
__device__ inline void hold(const RouteCall& call, int32_t first, int32_t end, int lane,
                            HeldColumns& held) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int32_t expert = first + j * kClusterWarps;
    const uint16_t* weights = call.router + int64_t{expert} * call.hidden;
#pragma unroll
    for (int i = 0; i < kHeldSteps; ++i) {
      const int32_t column = i * kStepColumns + lane * 8;
      held[j][i] = {};
      if (expert < end && column < call.hidden) {
        held[j][i] = *reinterpret_cast<const Bf16x8*>(weights + column);
      }
    }
  }
}

__device__ inline void add_eight(const float (&x)[8], const Bf16x8& weights, float& sum) {
  float values[8];
  unpack(weights, values);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], values[i], sum);
}

// A row's products with the two experts, summed over the columns of this lane: those that it holds,
// and the others.
__device__ inline void add_products(const RouteCall& call, const uint16_t* row, int32_t first,
                                    int32_t end, int lane, const HeldColumns& held,
                                    float (&sums)[2]) {
  // All loads of x before the first product, so that they wait for memory together.
  Bf16x8 columns[kHeldSteps] = {};
#pragma unroll
  for (int i = 0; i < kHeldSteps; ++i) {
    const int32_t column = i * kStepColumns + lane * 8;
    if (column < call.hidden) columns[i] = *reinterpret_cast<const Bf16x8*>(row + column);
  }
  float x[8];
#pragma unroll
  for (int i = 0; i < kHeldSteps; ++i) {
    unpack(columns[i], x);
    add_eight(x, held[0][i], sums[0]);
    add_eight(x, held[1][i], sums[1]);
  }
  // Rows longer than what is held. Without a second expert its sum is another one's, and not used.
  const int32_t second = min(first + kClusterWarps, end - 1);
#pragma unroll 2
  for (int32_t column = kHeldSteps * kStepColumns + lane * 8; column < call.hidden;
       column += kStepColumns) {
    unpack(*reinterpret_cast<const Bf16x8*>(row + column), x);
    const uint16_t* weights = call.router + column;
    add_eight(x, *reinterpret_cast<const Bf16x8*>(weights + int64_t{first} * call.hidden), sums[0]);
    add_eight(x, *reinterpret_cast<const Bf16x8*>(weights + int64_t{second} * call.hidden),
              sums[1]);
  }
}

// Few rows. grid: clusters of kBlocks blocks, each for kRows rows. The router does not depend on
// earlier work: a warp holds its first two experts when that ends, and the others come to the L2
// cache.
template <int kPerLane, int kRows>
__global__ void __launch_bounds__(kClusterWarps* kWarpThreads) route_few(const RouteCall call) {
  __shared__ float logits[kRows][kPerLane * kWarpThreads];
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int32_t part = (call.num_experts + kBlocks - 1) / kBlocks;
  const int32_t begin = min(static_cast<int32_t>(blockIdx.x) % kBlocks * part, call.num_experts);
  const int32_t end = min(begin + part, call.num_experts);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / kBlocks * kRows;
  const auto num_rows = static_cast<int32_t>(min(call.num_rows - first_row, int64_t{kRows}));
  // Registers: 64 of the 128 that a thread of 512 may have.
  HeldColumns held;
  hold(call, begin + warp, end, lane, held);
  if (part > 2 * kClusterWarps || call.hidden > kHeldSteps * kStepColumns) {
    const auto* bytes =
        reinterpret_cast<const std::byte*>(call.router + int64_t{begin} * call.hidden);
    const int64_t num_bytes = int64_t{end - begin} * call.hidden * 2;
    for (int64_t i = int64_t{threadIdx.x} * kLineBytes; i < num_bytes;
         i += kClusterWarps * kWarpThreads * kLineBytes) {
      prefetch_to_l2(bytes + i);
    }
  }
  let_next_kernel_start();
  float* const to = ClusterBlocks::of_block(&logits[0][0], 0);
  ClusterBlocks::sync();  // the first block has begun
  wait_for_earlier_work();
  const uint16_t* const x = call.x + first_row * call.hidden;
  for (int32_t e = begin + warp; e < end; e += 2 * kClusterWarps) {
    if (e != begin + warp) hold(call, e, end, lane, held);
    for (int r = 0; r < num_rows; ++r) {
      float sums[2] = {};
      add_products(call, x + int64_t{r} * call.hidden, e, end, lane, held, sums);
      const float first = group_sum<kWarpThreads>(sums[0]);
      const float second = group_sum<kWarpThreads>(sums[1]);
      if (lane != 0) continue;
      to[r * kPerLane * kWarpThreads + e] = first;
      if (e + kClusterWarps < end) to[r * kPerLane * kWarpThreads + e + kClusterWarps] = second;
    }
  }
  ClusterBlocks::sync();
  if (blockIdx.x % kBlocks != 0 || warp >= num_rows) return;
  float values[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + 32 * i;
    values[i] = expert < call.num_experts ? logits[warp][expert] : 0.0f;
  }
  choose(call, first_row + warp, values, lane);
}

template <int kPerLane>
void launch_choice(CudaStream& stream, const RouteCall& call) {
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>((call.num_rows + kWarps - 1) / kWarps)),
      .block = dim3(kWarps * kWarpThreads)};
  launch_early(stream, choose_rows<kPerLane>, shape, call);
}

template <int kPerLane>
void launch_few(CudaStream& stream, const RouteCall& call) {
  const int64_t num_clusters = (call.num_rows + kClusterRows - 1) / kClusterRows;
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(num_clusters * kBlocks)),
                             .block = dim3(kClusterWarps * kWarpThreads),
                             .cluster_blocks = kBlocks};
  const auto kernel =
      call.num_rows == 1 ? route_few<kPerLane, 1> : route_few<kPerLane, kClusterRows>;
  launch_early(stream, kernel, shape, call);
}

template <int kPerLane>
void launch(CudaStream& stream, const RouteCall& call, bool multiplies) {
  multiplies ? launch_few<kPerLane>(stream, call) : launch_choice<kPerLane>(stream, call);
}

// Whether route_few serves the call: what it loads is aligned, and the GPU has clusters.
bool multiplies_and_chooses(CudaStream& stream, const RouteCall& call) {
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % sizeof(Bf16x8) == 0;
  };
  return call.num_rows <= kMaxSkinnyRows && call.hidden % 8 == 0 && is_aligned(call.x) &&
         is_aligned(call.router) && stream.cuda_device().properties().major >= 9;
}

}  // namespace

// Order: enqueue only. Errors: kUnsupported for more than 512 experts or 32 slots.
void CudaOps::route_experts(Stream& on, const RouteExpertsArgs& args) const {
  const RouteCall call = {.x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
                          .router = reinterpret_cast<const uint16_t*>(args.router.data),
                          .scores = args.scores.data<float>(),
                          .experts = args.experts.data<int32_t>(),
                          .shares = args.shares.data<float>(),
                          .num_rows = args.scores.dim(0),
                          .hidden = static_cast<int32_t>(args.x.dim(1)),
                          .num_experts = static_cast<int32_t>(args.scores.dim(1)),
                          .num_slots = static_cast<int32_t>(args.experts.dim(1)),
                          .normalize = args.normalize};
  if (call.num_experts > kMaxPerLane * kWarpThreads || call.num_slots > kWarpThreads) {
    fail(ErrorCode::kUnsupported,
         "route_experts on CUDA chooses up to {} of up to {} experts, not {} of {}; use the device "
         "'cpu'",
         kWarpThreads, kMaxPerLane * kWarpThreads, call.num_slots, call.num_experts);
  }
  if (call.num_rows == 0) return;
  expect_weight_format("route_experts", args.router.format, WeightFormat::kBFloat16);
  CudaStream& stream = as_cuda(on);
  const bool is_one_kernel = multiplies_and_chooses(stream, call);
  if (!is_one_kernel) {
    matmul(on, {.x = args.x, .weight = args.router, .bias = {}, .out = args.scores});
  }
  stream.submit("route_experts", [&](cudaStream_t) {
    if (call.num_experts <= 4 * kWarpThreads) return launch<4>(stream, call, is_one_kernel);
    if (call.num_experts <= 8 * kWarpThreads) return launch<8>(stream, call, is_one_kernel);
    launch<kMaxPerLane>(stream, call, is_one_kernel);
  });
}

}  // namespace sluice::cuda
