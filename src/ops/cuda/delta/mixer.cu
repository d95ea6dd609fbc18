// Convolution, gated delta rule and gated norm of one row of each sequence in one kernel.
//
// A row's convolution takes 3 us and its norm 2 for next to no bytes, beside a step of 5 to 7 that
// waits for the first and is waited for by the other. Here the blocks of a key head are a cluster:
// each makes the channels that it needs, those of the key head too, and steps its columns; the
// outputs of a head's two blocks meet in shared memory for the norm. Bound: the bytes of S, read
// and written once. Tile: kDeltaColumns columns of a head of a sequence. Compiled without
// contraction: the bits are those of the three kernels and of the CPU. Thread rule: enqueue only.
#include "device/cuda/cuda_device.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/cluster_blocks.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/step.cuh"

namespace sluice::cuda {
namespace {

constexpr int kDim = kMaxCudaKDim;  // of queries, keys and values
constexpr int kHeadBlocks = kDim / kDeltaColumns;
constexpr int kTaps = 4;
constexpr int kMostClusterBlocks = 8;  // that every GPU with clusters has
// Channels of a thread: two of the query, two of the key, its column's value.
constexpr int kChannels = 2 * kHeadBlocks + 1;
constexpr int kValue = kChannels - 1;

// DeltaMixerArgs as plain pointers.
struct MixerCall {
  RuleCall rule;         // mixed is not there
  const uint16_t* x;     // bf16 [num_rows][x_width]
  const float* taps;     // [kTaps][num_channels]
  const uint16_t* gate;  // bf16 [num_rows][gate_width], from the first column that is used
  const float* weight;   // [kDim]
  uint16_t* normed;      // bf16, as rule.out
  int64_t x_width;
  int64_t gate_width;
  float eps;
};

// A channel's inputs before the row, the newest last, and in the row.
struct Inputs {
  uint16_t before[kTaps - 1];
  uint16_t own;
};

// Taps are added in ascending order to a zero, as on the CPU; before position 0 there is only the
// row itself.
__device__ inline float convolved(const float (&taps)[kTaps], const Inputs& inputs,
                                  bool has_before) {
  float sum = 0.0f;
  if (has_before) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) sum += taps[j] * bf16_to_float(inputs.before[j]);
  }
  sum += taps[kTaps - 1] * bf16_to_float(inputs.own);
  return silu_of(sum);
}

// grid: blocks of columns of all value heads, in clusters of a key head's; sequences.
__global__ void __launch_bounds__(kStepThreads) mix_row(const MixerCall call) {
  __shared__ StepRow row;
  __shared__ float raw[2][kDim];  // the query and the key before their norm
  __shared__ float of_head[kDim];
  __shared__ __align__(16) float s[kDim * kDeltaColumns];
  const RuleCall& rule = call.rule;
  const DeltaShape& shape = rule.states.shape;
  let_next_kernel_start();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto v_head = static_cast<int32_t>(blockIdx.x) / kHeadBlocks;
  const auto block = static_cast<int32_t>(blockIdx.x) % kHeadBlocks;
  const int32_t k_head = v_head / (shape.num_v_heads / shape.num_k_heads);
  const int32_t column = block * kDeltaColumns + thread;
  const int64_t num_channels = shape.num_channels();
  const SequencePart part = part_of(rule.rows, static_cast<int32_t>(blockIdx.y));
  int64_t channels[kChannels];
#pragma unroll
  for (int i = 0; i < kValue; ++i) {
    channels[i] = i / kHeadBlocks * shape.k_width() + k_head * kDim +
                  i % kHeadBlocks * kDeltaColumns + thread;
  }
  channels[kValue] = 2 * shape.k_width() + v_head * kDim + column;
  // Weights: no kernel writes them.
  float taps[kChannels][kTaps];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) taps[i][j] = call.taps[j * num_channels + channels[i]];
  }
  const float weight = call.weight[column];
  const bool has_before = part.from >= 0;
  const Part<true> of_s{};
  const int64_t offset = shape.block_offset(block);
  const float* from = has_before ? matrix_in(rule.states, part.from, v_head) + offset : nullptr;
  if (from != nullptr) prefetch_state(from, kDim * kDeltaColumns);
  wait_for_earlier_work();
  const int64_t out_column = part.begin * shape.v_width() + v_head * kDim + column;
  if (part.is_empty()) {  // so it is for all blocks of the cluster
    if (part.begin >= part.end) return;
    rule.out[out_column] = 0.0f;  // padding
    const uint16_t gate = call.gate[part.begin * call.gate_width + v_head * kDim + column];
    call.normed[out_column] = normed(0.0f, 1.0f / sqrtf(call.eps), weight, gate);
    return;
  }
  load_state(from, of_s, s);
  end_of_copies();
  const uint16_t* const x = call.x + part.begin * call.x_width;
  const uint16_t* const window = has_before ? window_in(rule.states, part.from) : nullptr;
  Inputs inputs[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    inputs[i].own = x[channels[i]];
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      inputs[i].before[j] = has_before ? window[j * num_channels + channels[i]] : uint16_t{0};
    }
  }
  const uint16_t gate = call.gate[part.begin * call.gate_width + v_head * kDim + column];
  if (thread == 0) {
    row.decay = fast_exp(log_decay(rule, part.begin, v_head));
    row.beta = beta_of(rule, part.begin, v_head);
  }
#pragma unroll
  for (int i = 0; i < kValue; ++i) {
    raw[i / kHeadBlocks][i % kHeadBlocks * kDeltaColumns + thread] =
        convolved(taps[i], inputs[i], has_before);
  }
  const float value = convolved(taps[kValue], inputs[kValue], has_before);
  ClusterBlocks::sync();  // all blocks have read the windows, which may move in place
  // The first block of the cluster writes the window of the key head; each that of its values.
  uint16_t* const to_window = window_in(rule.states, part.to);
  const bool writes_key_head = ClusterBlocks::rank() == 0;
#pragma unroll
  for (int i = 0; i < kChannels; ++i) {
    if (i != kValue && !writes_key_head) continue;
    uint16_t* to = to_window + channels[i];
    to[0] = inputs[i].before[1];
    to[num_channels] = inputs[i].before[2];
    to[2 * num_channels] = inputs[i].own;
  }
  if (thread < kWarpThreads) {
    const bool is_key = thread >= kNormLanes;
    const float q_scale = 1.0f / sqrtf(static_cast<float>(kDim));
    normalize(raw[is_key], kDim, is_key ? 1.0f : q_scale, thread % kNormLanes, true,
              is_key ? row.k : row.q);
  }
  wait_for_copies();
  __syncthreads();  // S, the query and the key are here
  float* to = matrix_in(rule.states, part.to, v_head) + offset + thread;
  const float out = step(row, of_s, value, s + thread, to);
  rule.out[out_column] = out;
  of_head[column] = out;
  *ClusterBlocks::of_block(&of_head[column], ClusterBlocks::rank() ^ 1) = out;
  ClusterBlocks::sync();  // both halves of the head are here
  float sum = 0.0f;
#pragma unroll
  for (int i = thread % kHeadLanes; i < kDim; i += kHeadLanes) sum += of_head[i] * of_head[i];
  const float mean = group_sum<kHeadLanes>(sum) / static_cast<float>(kDim);
  call.normed[out_column] = normed(out, 1.0f / sqrtf(mean + call.eps), weight, gate);
}
static_assert(kHeadBlocks == 2 && kTaps == 4, "halves of a head, and rows of a window");

// By shapes, places and the GPU alone.
bool fits_one_kernel(const DeltaMixerArgs& args, const cudaDeviceProp& gpu) {
  const DeltaShape& shape = args.rule.states.shape;
  return gpu.major >= 9 && args.rule.rows.max_rows == 1 && shape.k_dim == kDim &&
         shape.v_dim == kDim && shape.num_taps == kTaps &&
         shape.num_v_heads / shape.num_k_heads * kHeadBlocks <= kMostClusterBlocks &&
         args.norm.weight.dim(0) == kDim && is_aligned(args.rule.states.base) &&
         args.rule.states.slot_bytes % 16 == 0;
}

}  // namespace

void CudaOps::delta_mixer(Stream& on, const DeltaMixerArgs& args) const {
  CudaStream& stream = as_cuda(on);
  if (!fits_one_kernel(args, stream.cuda_device().properties())) {
    short_conv(on, args.conv);
    delta_rule(on, args.rule);
    return gated_norm(on, args.norm);
  }
  const DeltaShape& shape = args.rule.states.shape;
  const int64_t num_rows = args.conv.x.dim(0);
  MixerCall call{
      .rule = {.mixed = nullptr,
               .gates = args.rule.gates.data<float>(),
               .a_log = args.rule.a_log.data<float>(),
               .dt_bias = args.rule.dt_bias.data<float>(),
               .out = args.rule.out.data<float>(),
               .rows = pass_rows(args.rule.rows, num_rows, args.rule.states.num_slots),
               .states = args.rule.states},
      .x = reinterpret_cast<const uint16_t*>(args.conv.x.bytes()),
      .taps = args.conv.taps.data<float>(),
      .gate = reinterpret_cast<const uint16_t*>(args.norm.gate.bytes()) + args.norm.gate_column,
      .weight = args.norm.weight.data<float>(),
      .normed = reinterpret_cast<uint16_t*>(args.norm.out.bytes()),
      .x_width = args.conv.x.dim(1),
      .gate_width = args.norm.gate.dim(1),
      .eps = args.norm.eps};
  if (num_rows == 0 || call.rule.rows.num_seqs == 0) return;
  stream.submit("delta_mixer", [&](cudaStream_t) {
    call.rule.rows.report = stream.report("delta_mixer", kBadSlot);
    const int cluster_blocks = shape.num_v_heads / shape.num_k_heads * kHeadBlocks;
    const dim3 grid(static_cast<unsigned>(shape.num_v_heads * kHeadBlocks),
                    static_cast<unsigned>(call.rule.rows.num_seqs));
    launch_early(stream, mix_row,
                 {.grid = grid, .block = dim3(kStepThreads), .cluster_blocks = cluster_blocks},
                 call);
  });
}

}  // namespace sluice::cuda
