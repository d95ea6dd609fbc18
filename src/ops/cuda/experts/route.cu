// The router's choice: one warp a row. Bound: latency; a row is a few hundred numbers.
//
// Lanes hold experts lane, lane + 32, ... in registers. The sum of a softmax is taken by lanes and
// then over them, in a fixed order; of equal probabilities the lowest index wins.
#include <cfloat>

#include "core/error.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPerLane = 16;  // 512 experts

struct RouteCall {
  float* scores;
  int32_t* experts;
  float* shares;
  int64_t num_rows;
  int32_t num_experts;
  int32_t num_slots;
  bool normalize;
};

// The larger value, or of equal ones the lower index; NaN is below everything.
__device__ inline void take_better(float other, int32_t other_index, float& value, int32_t& index) {
  if (other > value || (other == value && other_index < index)) {
    value = other;
    index = other_index;
  }
}

// Turns the logits of a row into exp(logit - largest), and returns their sum, by which the caller
// divides.
__device__ inline float softmax(float (&values)[kMaxPerLane], int32_t num_experts, int lane) {
  float largest = -FLT_MAX;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    if (lane + 32 * i < num_experts) largest = fmaxf(largest, values[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    if (lane + 32 * i >= num_experts) continue;
    values[i] = expf(values[i] - largest);
    sum += values[i];
  }
  return group_sum<kWarpThreads>(sum);
}

__global__ void __launch_bounds__(kWarps* kWarpThreads) route(RouteCall call) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  let_next_kernel_start();
  wait_for_earlier_work();
  if (row >= call.num_rows) return;
  float* const scores = call.scores + row * call.num_experts;
  float values[kMaxPerLane];
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const int expert = lane + 32 * i;
    values[i] = expert < call.num_experts ? scores[expert] : 0.0f;
  }
  const float sum = softmax(values, call.num_experts, lane);
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    const int expert = lane + 32 * i;
    if (expert >= call.num_experts) continue;
    values[i] /= sum;
    scores[expert] = values[i];
  }
  __syncwarp();  // all lanes read the scores below
  float chosen_sum = 0.0f;
  float own_share = 0.0f;  // of slot `lane`
  uint32_t is_chosen = 0;  // of the lane's experts
  // One after the other: a row has few slots, and a sort of all experts would cost more.
  for (int slot = 0; slot < call.num_slots; ++slot) {
    float value = -1.0f;  // below every probability
    int32_t index = call.num_experts;
#pragma unroll
    for (int i = 0; i < kMaxPerLane; ++i) {
      const int expert = lane + 32 * i;
      if (expert >= call.num_experts || (is_chosen >> i & 1u) != 0) continue;
      const bool is_nan = values[i] != values[i];
      take_better(is_nan ? -0.5f : values[i], expert, value, index);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kFullWarp, value, step);
      const int32_t other_index = __shfl_xor_sync(kFullWarp, index, step);
      take_better(other, other_index, value, index);
    }
    if (index % 32 == lane) is_chosen |= 1u << index / 32;
    const float share = scores[index];
    chosen_sum += share;
    if (slot == lane) own_share = share;
    if (lane == 0) call.experts[row * call.num_slots + slot] = index;
  }
  if (lane >= call.num_slots) return;
  call.shares[row * call.num_slots + lane] = call.normalize ? own_share / chosen_sum : own_share;
}

}  // namespace

// Order: enqueue only. Errors: kUnsupported for more than 512 experts or 32 slots.
void CudaOps::route_experts(Stream& on, const RouteExpertsArgs& args) const {
  const RouteCall call = {.scores = args.scores.data<float>(),
                          .experts = args.experts.data<int32_t>(),
                          .shares = args.shares.data<float>(),
                          .num_rows = args.scores.dim(0),
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
  CudaStream& stream = as_cuda(on);
  stream.submit("route_experts", [&](cudaStream_t) {
    const LaunchShape shape = {
        .grid = dim3(static_cast<unsigned>((call.num_rows + kWarps - 1) / kWarps)),
        .block = dim3(kWarps * kWarpThreads)};
    launch_early(stream, route, shape, call);
  });
}

}  // namespace sluice::cuda
