// Decode attention, first phase, for any head_dim: one token after the other.
//
// Used by attention/decode/decode.cc for shapes that attention/decode/block.cu does not support.
// Bound: latency, since each score is a sum over the lanes of a warp; simple rather than fast.
// Tile: a warp computes one window of one query head; a lane owns channels lane, lane + 32, and so
// on.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/attention/decode/kernels.h"
#include "ops/cuda/attention/decode/window.cuh"

namespace sluice::cuda {
namespace {

constexpr int kMaxChannels = 256 / kWarpThreads;  // of a lane

// The online softmax of a window so far; max and sum are the same in all lanes.
struct Partial {
  float max = -INFINITY;
  float sum = 0.0f;
  float acc[kMaxChannels] = {};
};

// This lane's channels of a row of `head_dim`, 0 after the last.
__device__ inline void load_channels(const uint16_t* row, int32_t head_dim, int32_t lane,
                                     float (&values)[kMaxChannels]) {
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i) {
    const int32_t channel = lane + i * kWarpThreads;
    values[i] = channel < head_dim ? bf16_to_float(row[channel]) : 0.0f;
  }
}

// The same of token `token` of a tile of keys or values.
template <bool kCoded>
__device__ inline void load_token(const DecodeParams& p, const uint16_t* tile, int32_t token,
                                  int32_t lane, float (&values)[kMaxChannels]) {
  const int32_t head_dim = p.head_dim;
  if constexpr (!kCoded) return load_channels(tile + token * head_dim, head_dim, lane, values);
  const auto* rows = reinterpret_cast<const uint8_t*>(tile);
  const uint32_t factors = row_factors(p.codec, rows[kTileTokens * head_dim + token]);
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i) {
    const int32_t channel = lane + i * kWarpThreads;
    values[i] =
        channel < head_dim ? turn_code(p.codec, rows[token * head_dim + channel], factors) : 0.0f;
  }
}

// One token: score = scale * q.k, then max, sum and acc are updated.
template <KvCodes kCodes>
__device__ inline void visit(const uint16_t* keys, const uint16_t* values, int32_t token,
                             const DecodeParams& p, const float (&q)[kMaxChannels], int32_t lane,
                             Partial& partial) {
  float channels[kMaxChannels];
  load_token<kHasCodedKeys<kCodes>>(p, keys, token, lane, channels);
  float dot = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i) dot = __fmaf_rn(q[i], channels[i], dot);
  const float score = __fmul_rn(group_sum<kWarpThreads>(dot), p.scale);
  const float max = fmaxf(partial.max, score);
  const float reference = reference_of(max);
  const float keep = exp_of_difference(partial.max, reference);
  const float weight = exp_of_difference(score, reference);
  load_token<kHasCodedValues<kCodes>>(p, values, token, lane, channels);
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i) {
    partial.acc[i] = __fmaf_rn(channels[i], weight, __fmul_rn(partial.acc[i], keep));
  }
  partial.sum = __fmaf_rn(partial.sum, keep, weight);
  partial.max = max;
}

// grid: windows of the round x query heads x sequences of the round.
template <bool kListed, KvCodes kCodes>
__global__ void __launch_bounds__(kWarpThreads) decode_windows_general(const DecodeParams p) {
  let_next_kernel_start();
  const int32_t lane = threadIdx.x;
  const int32_t seq = p.first_seq + blockIdx.z;
  const int32_t head = blockIdx.y;
  const int32_t kv_head = head / p.group;
  const int32_t window_index = p.first_window + blockIdx.x;
  const int32_t block = block_of_window<kListed>(p, seq, window_index);
  const DecodeRow row = decode_row(p, seq);
  wait_for_earlier_work();
  if (window_index >= row.num_windows) return;
  const DecodeWindow window =
      make_window<kListed, kCodes>(p, row, seq, kv_head, window_index, block, lane);
  const int64_t index = partial_index(p, blockIdx.z, head, blockIdx.x);
  float q[kMaxChannels];
  const uint16_t* queries = queries_of_window(p, row, window.begin);
  load_channels(queries + (row.row * p.num_q_heads + head) * p.head_dim, p.head_dim, lane, q);
  // Open windows: a Partial of 10 numbers per query head and lane (open_window_bytes in decode.cc).
  const int64_t lane_index = static_cast<int64_t>(head) * kWarpThreads + lane;
  Partial partial;
  if (window.resumes) partial = reinterpret_cast<const Partial*>(p.resumed_windows)[lane_index];
  for (uint32_t tiles = window.tiles; tiles != 0; tiles &= tiles - 1) {
    const int32_t tile = __ffs(tiles) - 1;
    const uint16_t* keys = tile_keys<kListed, kCodes>(p, window, kv_head, p.head_dim, tile);
    const uint16_t* values = keys + offset_of_values<kCodes>(p, p.head_dim) -
                             shift_of_values<kListed, kCodes>(p, window, p.head_dim, tile);
    const int32_t num_tokens = min(kTileTokens, row.kv_end - window.begin - tile * kTileTokens);
    for (int32_t token = 0; token < num_tokens; ++token) {
      visit<kCodes>(keys, values, token, p, q, lane, partial);
    }
  }
  // The window continues in the next part of a gathered list: its registers are kept, and the fold
  // sees nothing of it yet.
  if (window.is_open) {
    reinterpret_cast<Partial*>(p.open_windows)[lane_index] = partial;
    if (lane == 0) p.partial_max_sum[index] = nothing_visible();
    return;
  }
  if (lane == 0) p.partial_max_sum[index] = {partial.max, partial.sum};
#pragma unroll
  for (int i = 0; i < kMaxChannels; ++i) {
    const int32_t channel = lane + i * kWarpThreads;
    if (channel < p.head_dim) p.partial_acc[index * p.head_dim + channel] = partial.acc[i];
  }
}

template <KvCodes kCodes>
void launch_general(CudaStream& stream, const DecodeParams& p) {
  const dim3 grid(static_cast<unsigned>(p.num_windows), static_cast<unsigned>(p.num_q_heads),
                  static_cast<unsigned>(p.num_seqs));
  const bool is_listed = p.page_ids != nullptr;
  launch_early(
      stream,
      is_listed ? decode_windows_general<true, kCodes> : decode_windows_general<false, kCodes>,
      {.grid = grid, .block = dim3(kWarpThreads)}, p);
}

}  // namespace

void launch_decode_windows_general(CudaStream& stream, const DecodeParams& p) {
  switch (p.codes) {
    case KvCodes::kNone:
      return launch_general<KvCodes::kNone>(stream, p);
    case KvCodes::kValues:
      return launch_general<KvCodes::kValues>(stream, p);
    case KvCodes::kAll:
      return launch_general<KvCodes::kAll>(stream, p);
  }
}

}  // namespace sluice::cuda
