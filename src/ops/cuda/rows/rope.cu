// Rotary embedding on CUDA, fused with the q/k norm before it and the KV write after it: q, k and v
// of a row are read once and written once. Thread rule: enqueue only.
#include <algorithm>
#include <bit>

#include "core/error.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/kv_rounding.cuh"
#include "ops/cuda/rows/norm_row.cuh"

namespace sluice::cuda {
namespace {

// RopeAnglesArgs as plain pointers and sizes.
struct AnglesCall {
  const int32_t* positions;  // [num_rows], absolute
  const float* inv_freq;     // [half]
  float* cos_sin;            // [num_rows][2][half]: cosines, then sines
  int64_t num_rows;
  int32_t half;  // head_dim / 2
  float attention_factor;
  RopeChunks chunks;
};

// The position that is rotated.
__device__ inline int32_t rotated_position(const RopeChunks& chunks, int32_t position) {
  if (chunks.zone == RopeZone::kPlain) return position;
  const int32_t in_chunk = position % chunks.chunk_tokens;
  if (chunks.zone == RopeZone::kBefore) {
    return min(in_chunk + chunks.chunk_tokens, chunks.chunk_size);
  }
  if (chunks.zone == RopeZone::kFar) return min(2 * chunks.chunk_tokens - 1, chunks.chunk_size);
  return in_chunk;
}

// f^2 of RopeChunks::factor_from; exactly 1 up to there.
__device__ inline float length_factor(const RopeChunks& chunks, int32_t position) {
  if (chunks.factor_from == 0 || position < chunks.factor_from) return 1.0f;
  const double length = position + 1.0;
  const double factor = 1.0 + 0.1 * log(length / chunks.factor_from);
  return static_cast<float>(factor * factor);
}

constexpr int kAngleThreads = 128;

// The angle is the f32 product that transformers computes; its cosine and sine are taken in double.
// At position 1,000,000 the angle has 4 bits after the point, and sinf would reduce it in local
// memory and be off by up to 2 units. Bound: about 100 double operations an angle, not its 8 bytes;
// once per pass. Tile: an angle a thread.
__global__ void __launch_bounds__(kAngleThreads) write_angles(AnglesCall call) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kAngleThreads + threadIdx.x;
  const int64_t row = index / call.half;
  const auto channel = static_cast<int32_t>(index % call.half);
  let_next_kernel_start();
  wait_for_earlier_work();
  if (row >= call.num_rows) return;
  const int32_t position = call.positions[row];
  const auto rotated = static_cast<float>(rotated_position(call.chunks, position));
  const float angle = __fmul_rn(rotated, call.inv_freq[channel]);
  double sine, cosine;
  sincos(static_cast<double>(angle), &sine, &cosine);
  float* cosines = call.cos_sin + row * 2 * call.half;
  const float scale = __fmul_rn(call.attention_factor, length_factor(call.chunks, position));
  const float factor = call.inv_freq[channel] == 0.0f ? 1.0f : scale;
  cosines[channel] = factor * static_cast<float>(cosine);
  cosines[call.half + channel] = factor * static_cast<float>(sine);
}

// RopeAndWriteKvArgs as plain pointers and sizes.
struct RopeCall {
  const uint16_t* qkv;     // bf16 [num_rows][q heads, k heads, v heads][head_dim]
  const uint16_t* q_norm;  // bf16 [head_dim], or null: no norm
  const uint16_t* k_norm;  // null exactly when q_norm is
  const float* cos_sin;    // [num_rows][2][head_dim / 2]
  uint16_t* q_out;         // bf16 [num_rows][num_q_heads][head_dim]
  const int32_t* kv_rows;  // [num_rows]: token slot in `kv`, or -1
  KvBlocksView kv;
  int64_t head_bytes;  // from the keys of a KV head in a block to those of the next
  int64_t key_bytes;   // and to its values
  int32_t num_rows;
  int32_t num_q_heads;
  float norm_eps;
  float norm_offset;             // added to the weights
  float one_over_norm_channels;  // channels beyond norm_channels are zeros and add nothing
  CudaReport report;
};

constexpr int kRopeThreads = 128;  // 16 heads of 128 channels at a time

// The channels [8 part, 8 part + 8) of both halves of a head: the eight pairs of one thread.
struct Channels {
  Bf16x8 low = {};
  Bf16x8 high = {};
};

// first ? a : b, register by register (see its use).
__device__ inline Channels select(bool first, const Channels& a, const Channels& b) {
  Channels chosen;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    chosen.low.pairs[i] = first ? a.low.pairs[i] : b.low.pairs[i];
    chosen.high.pairs[i] = first ? a.high.pairs[i] : b.high.pairs[i];
  }
  return chosen;
}

// The cosines and sines of a thread's eight pairs, the same for all heads of a row.
struct Turn {
  float cosines[8];
  float sines[8];
};

// Eight neighbouring floats in two loads. REQUIRES: 16-byte alignment.
__device__ inline void load_floats(const float* source, float (&values)[8]) {
  const auto* vectors = reinterpret_cast<const float4*>(source);
  const float4 low = vectors[0];
  const float4 high = vectors[1];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

// rope(norm(x)) of a thread's channels. All `kLanes` lanes that share a head call it, those without
// channels with zeros, which leave the sum of squares as it is.
template <int kLanes>
__device__ inline Channels rope_head(const Channels& x, const Channels& norm_weight,
                                     const Turn& turn, const RopeCall& call) {
  float a[8], b[8];
  unpack(x.low, a);
  unpack(x.high, b);
  if (call.q_norm != nullptr) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += a[i] * a[i] + b[i] * b[i];
    squares = group_sum<kLanes>(squares);
    const float scale = norm_scale(squares, call.one_over_norm_channels, call.norm_eps);
    float low_weight[8], high_weight[8];
    unpack(norm_weight.low, low_weight);
    unpack(norm_weight.high, high_weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      a[i] = (call.norm_offset + low_weight[i]) * (a[i] * scale);
      b[i] = (call.norm_offset + high_weight[i]) * (b[i] * scale);
    }
  }
  // (a, b) times cos + i sin, as a complex number.
  float low[8], high[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    low[i] = a[i] * turn.cosines[i] - b[i] * turn.sines[i];
    high[i] = b[i] * turn.cosines[i] + a[i] * turn.sines[i];
  }
  return {pack(low), pack(high)};
}

// The half of a block that a head of qkv after those of queries is written to: `kv_head` counts the
// keys of all KV heads, then their values.
__device__ inline std::byte* half_of(const RopeCall& call, int kv_row, int kv_head) {
  const KvBlockShape& shape = call.kv.shape;
  const bool is_value = kv_head >= shape.num_kv_heads;
  return call.kv.base + kv_row / shape.block_tokens * call.kv.stride_bytes +
         (is_value ? (kv_head - shape.num_kv_heads) * call.head_bytes + call.key_bytes
                   : kv_head * call.head_bytes);
}

// The destination of a row's head: q_out, or the key or value in its KV block (the layout of
// ops/kv_blocks.h); null for k and v of a row whose kv_rows entry is -1.
__device__ inline uint16_t* head_target(const RopeCall& call, int64_t row, int head, int kv_row) {
  const int head_dim = call.kv.shape.head_dim;
  if (head < call.num_q_heads) return call.q_out + (row * call.num_q_heads + head) * head_dim;
  if (kv_row < 0) return nullptr;
  auto* half = reinterpret_cast<uint16_t*>(half_of(call, kv_row, head - call.num_q_heads));
  return half + int64_t{kv_row % call.kv.shape.block_tokens} * head_dim;
}

// Writes a thread's channels of a key or value to its token of a block of codes. All kLanes lanes
// that share a head call it; kv_row is negative where nothing is written.
template <int kLanes, KvElement kElement, bool kCodedKeys>
__device__ inline void write_codes(const RopeCall& call, int head, int kv_row, bool active,
                                   int part, const Channels& channels) {
  uint32_t largest = largest_magnitude(channels.high, largest_magnitude(channels.low, 0));
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(kFullWarp, largest, step));
  }
  const KvBlockShape& shape = call.kv.shape;
  const int kv_head = head - call.num_q_heads;
  if (!active || kv_row < 0 || kv_head < 0 || kv_head >= 2 * shape.num_kv_heads) return;
  if (!kCodedKeys && kv_head < shape.num_kv_heads) return;  // a key in bf16
  const uint32_t scale = scale_of_row<kElement>(largest);
  const int token = kv_row % shape.block_tokens;
  const int in_tile = token % kKvScaleTile;
  // The tile of 16 tokens: their rows, then their scales.
  std::byte* tile =
      half_of(call, kv_row, kv_head) + int64_t{token - in_tile} * (shape.head_dim + 1);
  std::byte* row = tile + in_tile * shape.head_dim + 8 * part;
  *reinterpret_cast<uint2*>(row) = round_numbers<kElement>(channels.low, scale);
  *reinterpret_cast<uint2*>(row + shape.head_dim / 2) =
      round_numbers<kElement>(channels.high, scale);
  if (part == 0) tile[kKvScaleTile * shape.head_dim + in_tile] = static_cast<std::byte>(scale);
}

// Bound: bytes, 4 per element of qkv; cos_sin is read once per row, and again from L1 by the other
// lanes. Tile: one row a block, or a share of its heads with few rows; kLanes lanes hold a head, 16
// channels each, and walk over heads with the angles and the norms' weights of their channels in
// registers, while the next head's channels are being loaded.
template <int kLanes, KvElement kElement, bool kCodedKeys>
__global__ void __launch_bounds__(kRopeThreads, 6) rope_rows(RopeCall call) {
  constexpr int kHeadsAtOnce = kRopeThreads / kLanes;
  constexpr bool kCodedValues = kElement != KvElement::kBFloat16;
  const KvBlockShape& shape = call.kv.shape;
  const int64_t row = blockIdx.x;
  const int part = threadIdx.x % kLanes;
  const int half = shape.head_dim / 2;
  const bool active = part < half / 8;  // false where head_dim / 16 is no power of two
  const int num_rotated = call.num_q_heads + shape.num_kv_heads;  // the rest are values
  const int num_heads = num_rotated + shape.num_kv_heads;
  const auto load = [&](const uint16_t* source, bool exists) {
    Channels channels;
    if (active && exists) {
      channels.low = *reinterpret_cast<const Bf16x8*>(source + 8 * part);
      channels.high = *reinterpret_cast<const Bf16x8*>(source + half + 8 * part);
    }
    return channels;
  };
  const uint16_t* qkv = call.qkv + row * num_heads * shape.head_dim;

  let_next_kernel_start();
  // Weights of the model are never written by a kernel, so they can be read before the wait.
  const Channels q_weight = load(call.q_norm, call.q_norm != nullptr);
  const Channels k_weight = load(call.k_norm, call.k_norm != nullptr);
  // All layers read these. The weights read since the last layer's rope have driven them out of the
  // L2 cache; they come back there during the wait.
  const float* angles = call.cos_sin + row * shape.head_dim + (active ? 8 * part : 0);
  prefetch_to_l2(angles);
  prefetch_to_l2(angles + half);
  prefetch_to_l2(call.kv_rows + row);
  wait_for_earlier_work();
  const int first_head = static_cast<int>(blockIdx.y) * kHeadsAtOnce;
  const int step = static_cast<int>(gridDim.y) * kHeadsAtOnce;
  int head = first_head + static_cast<int>(threadIdx.x) / kLanes;
  Channels channels = load(qkv + head * shape.head_dim, head < num_heads);
  int kv_row = call.kv_rows[row];
  Turn turn;
  load_floats(angles, turn.cosines);
  load_floats(angles + half, turn.sines);
  // A row outside the blocks is reported and not written; every block of the row reports it.
  if (kv_row < -1 || kv_row / shape.block_tokens >= call.kv.num_blocks) {
    if (threadIdx.x == 0) fail_row(call.report, row);
    kv_row = -1;
  }
  // The same number of rounds for all lanes of a warp, since the shuffles of rope_head need all.
  for (int first = first_head; first < num_heads; first += step, head += step) {
    const int next_head = head + step;
    const Channels next = load(qkv + next_head * shape.head_dim, next_head < num_heads);
    // By value: selecting between two addresses would put both into local memory.
    const Channels weight = select(head < call.num_q_heads, q_weight, k_weight);
    const Channels turned = rope_head<kLanes>(channels, weight, turn, call);
    if (head < num_rotated) channels = turned;
    if constexpr (kCodedValues) {
      write_codes<kLanes, kElement, kCodedKeys>(call, head, kv_row, active, part, channels);
    }
    const bool is_bf16 = head < (kCodedKeys     ? call.num_q_heads
                                 : kCodedValues ? num_rotated
                                                : num_heads);
    uint16_t* target = active && is_bf16 ? head_target(call, row, head, kv_row) : nullptr;
    if (target != nullptr) {
      *reinterpret_cast<Bf16x8*>(target + 8 * part) = channels.low;
      *reinterpret_cast<Bf16x8*>(target + half + 8 * part) = channels.high;
    }
    channels = next;
  }
}

// A head of head_dim channels takes head_dim / 16 lanes, rounded up to a power of two.
template <KvElement kElement, bool kCodedKeys>
void launch_rope(CudaStream& stream, const RopeCall& call) {
  const unsigned lanes = std::bit_ceil(static_cast<unsigned>(call.kv.shape.head_dim / 16));
  LaunchShape shape = {dim3(static_cast<unsigned>(call.num_rows)), dim3(kRopeThreads)};
  // Fewer rows than multiprocessors: several blocks share a row, one round of heads each, which
  // shortens the latency of a decode step.
  if (call.num_rows < stream.cuda_device().properties().multiProcessorCount) {
    const auto num_heads = static_cast<unsigned>(call.num_q_heads + 2 * call.kv.shape.num_kv_heads);
    const unsigned at_once = kRopeThreads / lanes;
    shape.grid.y = (num_heads + at_once - 1) / at_once;
  }
  switch (lanes) {
    case 1:
      return launch_early(stream, rope_rows<1, kElement, kCodedKeys>, shape, call);
    case 2:
      return launch_early(stream, rope_rows<2, kElement, kCodedKeys>, shape, call);
    case 4:
      return launch_early(stream, rope_rows<4, kElement, kCodedKeys>, shape, call);
    case 8:
      return launch_early(stream, rope_rows<8, kElement, kCodedKeys>, shape, call);
    case 16:
      return launch_early(stream, rope_rows<16, kElement, kCodedKeys>, shape, call);
    default:
      SLUICE_CHECK(false, "rope_and_write_kv: head_dim {}", call.kv.shape.head_dim);
  }
}

}  // namespace

void CudaOps::rope_angles(Stream& on, const RopeAnglesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const AnglesCall call{
      .positions = args.positions.data<int32_t>(),
      .inv_freq = args.inv_freq.data<float>(),
      .cos_sin = args.cos_sin.data<float>(),
      .num_rows = args.positions.dim(0),
      .half = static_cast<int32_t>(args.inv_freq.dim(0)),
      .attention_factor = args.attention_factor,
      .chunks = args.chunks,
  };
  const int64_t num_blocks = (call.num_rows * call.half + kAngleThreads - 1) / kAngleThreads;
  if (num_blocks == 0) return;
  stream.submit("rope_angles", [&](cudaStream_t) {
    launch_early(stream, write_angles,
                 {dim3(static_cast<unsigned>(num_blocks)), dim3(kAngleThreads)}, call);
  });
}

void CudaOps::rope_and_write_kv(Stream& on, const RopeAndWriteKvArgs& args) const {
  expect_kv_element("rope_and_write_kv", args.kv.shape,
                    {KvElement::kBFloat16, KvElement::kE4m3, KvElement::kInt8},
                    /*takes_bf16_keys=*/true);
  CudaStream& stream = as_cuda(on);
  RopeCall call{
      .qkv = reinterpret_cast<const uint16_t*>(args.qkv.bytes()),
      .q_norm = reinterpret_cast<const uint16_t*>(args.q_norm.bytes()),
      .k_norm = reinterpret_cast<const uint16_t*>(args.k_norm.bytes()),
      .cos_sin = args.cos_sin.data<float>(),
      .q_out = reinterpret_cast<uint16_t*>(args.q_out.bytes()),
      .kv_rows = args.kv_rows.data<int32_t>(),
      .kv = args.kv,
      .head_bytes = static_cast<int64_t>(args.kv.shape.head_bytes()),
      .key_bytes = static_cast<int64_t>(args.kv.shape.keys().bytes()),
      .num_rows = static_cast<int32_t>(args.qkv.dim(0)),
      .num_q_heads = static_cast<int32_t>(args.q_out.dim(1)),
      .norm_eps = args.norm_eps,
      .norm_offset = args.norm_offset,
      .one_over_norm_channels = 1.0f / static_cast<float>(args.norm_channels),
      .report = {},
  };
  // Both halves of a head are loaded in vectors of 8, hence multiples of 16.
  SLUICE_CHECK(call.kv.shape.head_dim % 16 == 0 && is_aligned(call.qkv) && is_aligned(call.q_out) &&
                   is_aligned(call.kv.base) && call.kv.stride_bytes % 16 == 0,
               "rope_and_write_kv: head_dim {} and the memory must allow vectors of 16 bytes",
               call.kv.shape.head_dim);
  if (call.num_rows == 0) return;
  stream.submit("rope_and_write_kv", [&](cudaStream_t) {
    call.report =
        stream.report("rope_and_write_kv", "kv_rows[{}] names a token outside the view's blocks");
    const KvBlockShape& shape = call.kv.shape;
    switch (shape.element) {
      case KvElement::kBFloat16:
        return launch_rope<KvElement::kBFloat16, false>(stream, call);
      case KvElement::kE4m3:
        return shape.keys_in_bf16 ? launch_rope<KvElement::kE4m3, false>(stream, call)
                                  : launch_rope<KvElement::kE4m3, true>(stream, call);
      case KvElement::kInt8:
        return shape.keys_in_bf16 ? launch_rope<KvElement::kInt8, false>(stream, call)
                                  : launch_rope<KvElement::kInt8, true>(stream, call);
    }
  });
}

}  // namespace sluice::cuda
