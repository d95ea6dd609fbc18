// Rotary embedding on the CPU, fused with the q/k norm before it and the KV write after it.
//
// Fused because q and k of a row are then read once, and k goes to its KV block without another
// copy. Thread rule: enqueue only; rows run on the stream's team, which is safe since no two rows
// of a call write the same KV entry.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kv_rows.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/rows/kernels.h"

namespace sluice::cpu {
namespace {

struct AnglesCall {
  const int32_t* positions;  // [num_rows], absolute
  const float* inv_freq;     // [half]
  float* cos_sin;            // [num_rows][2][half]: cosines, then sines
  int64_t num_rows;
  int64_t half;  // head_dim / 2
  float attention_factor;
  RopeChunks chunks;
};

// The position that is rotated.
int32_t rotated_position(const RopeChunks& chunks, int32_t position) {
  if (chunks.zone == RopeZone::kPlain) return position;
  const int32_t in_chunk = position % chunks.chunk_tokens;
  switch (chunks.zone) {
    case RopeZone::kBefore:
      return std::min(in_chunk + chunks.chunk_tokens, chunks.chunk_size);
    case RopeZone::kFar:
      return std::min(2 * chunks.chunk_tokens - 1, chunks.chunk_size);
    default:
      return in_chunk;
  }
}

// f^2 of RopeChunks::factor_from; exactly 1 up to there.
float length_factor(const RopeChunks& chunks, int32_t position) {
  if (chunks.factor_from == 0 || position < chunks.factor_from) return 1.0f;
  const double length = position + 1.0;
  const double factor = 1.0 + 0.1 * std::log(length / chunks.factor_from);
  return static_cast<float>(factor * factor);
}

// std::cos and std::sin of a float reduce any argument exactly enough (glibc does it in double),
// which matters: at position 1,000,000 the angle has only 4 bits after the point.
void angle_rows(const AnglesCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* cosines = call.cos_sin + row * 2 * call.half;
    float* sines = cosines + call.half;
    const auto position = static_cast<float>(rotated_position(call.chunks, call.positions[row]));
    const float scale = call.attention_factor * length_factor(call.chunks, call.positions[row]);
    for (int64_t i = 0; i < call.half; ++i) {
      const float angle = position * call.inv_freq[i];
      const float own_scale = call.inv_freq[i] == 0.0f ? 1.0f : scale;
      cosines[i] = own_scale * std::cos(angle);
      sines[i] = own_scale * std::sin(angle);
    }
  }
}

struct RopeCall {
  const uint16_t* qkv;     // bf16 [num_rows][q heads, k heads, v heads][head_dim]
  const uint16_t* q_norm;  // bf16 [head_dim], or null: no norm
  const uint16_t* k_norm;  // null exactly when q_norm is
  const float* cos_sin;    // [num_rows][2][head_dim / 2]
  uint16_t* q_out;         // bf16 [num_rows][num_q_heads][head_dim]
  const int32_t* kv_rows;  // [num_rows]: token slot in `kv`, or -1
  KvBlocksView kv;
  int64_t num_rows;
  int32_t num_q_heads;
  float norm_eps;
  float norm_offset;
  int32_t norm_channels;
  const RowKernels* kernels;

  RopeHead head(const uint16_t* x, const uint16_t* norm, const float* angles, uint16_t* out) const {
    return {.x = x,
            .norm_weight = norm,
            .cos_sin = angles,
            .out = out,
            .head_dim = kv.shape.head_dim,
            .norm_channels = norm_channels,
            .eps = norm_eps,
            .norm_offset = norm_offset};
  }
};

// Writes a row of bf16 to the keys, or values, at `to`, rounded to their element.
void write_row(const KvHalf& half, std::byte* to, int32_t token, const uint16_t* row) {
  std::byte* place = to + half.row_offset(token);
  if (half.element == KvElement::kBFloat16) {
    if (place != reinterpret_cast<const std::byte*>(row)) std::memcpy(place, row, half.row_bytes());
    return;
  }
  *reinterpret_cast<uint8_t*>(to + half.scale_offset(token)) =
      round_kv_row(half.element, row, half.head_dim, reinterpret_cast<uint8_t*>(place));
}

// rope(norm(k)) and v of a row to a token of a block. A key that is rounded is a bf16 first.
void write_kv(const RopeCall& call, const uint16_t* k, const uint16_t* v, const float* cos_sin,
              int32_t block, int32_t token) {
  const KvBlockShape& shape = call.kv.shape;
  const KvHalf keys = shape.keys();
  KvRowRoom room;
  for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
    uint16_t* key = keys.element == KvElement::kBFloat16
                        ? call.kv.keys<uint16_t>(block, head, token)
                        : room.numbers;
    call.kernels->rope(call.head(k, call.k_norm, cos_sin, key));
    write_row(keys, call.kv.keys<std::byte>(block, head), token, key);
    write_row(shape.values(), call.kv.values<std::byte>(block, head), token, v);
    k += shape.head_dim;
    v += shape.head_dim;
  }
}

// All heads of one row: q to q_out, k rotated and v to the block entry that kv_rows names.
void rope_row(const RopeCall& call, int64_t row) {
  const KvBlockShape& shape = call.kv.shape;
  const int64_t head_dim = shape.head_dim;
  const int64_t num_heads = call.num_q_heads + 2 * shape.num_kv_heads;
  const uint16_t* q = call.qkv + row * num_heads * head_dim;
  const uint16_t* k = q + call.num_q_heads * head_dim;
  const uint16_t* v = k + shape.num_kv_heads * head_dim;
  const float* cos_sin = call.cos_sin + row * head_dim;
  uint16_t* q_out = call.q_out + row * call.num_q_heads * head_dim;
  for (int32_t head = 0; head < call.num_q_heads; ++head) {
    call.kernels->rope(
        call.head(q + head * head_dim, call.q_norm, cos_sin, q_out + head * head_dim));
  }
  const int32_t kv_row = call.kv_rows[row];
  if (kv_row == -1) return;  // a row that fills a shape up
  const int32_t block_index = kv_row / shape.block_tokens;
  SLUICE_CHECK(kv_row >= 0 && block_index < call.kv.num_blocks,
               "rope_and_write_kv: kv_rows[{}] is {}, the view has {} blocks of {} tokens", row,
               kv_row, call.kv.num_blocks, shape.block_tokens);
  write_kv(call, k, v, cos_sin, block_index, kv_row % shape.block_tokens);
}

}  // namespace

void CpuOps::rope_angles(Stream& stream, const RopeAnglesArgs& args) const {
  const AnglesCall call{
      .positions = args.positions.data<int32_t>(),
      .inv_freq = args.inv_freq.data<float>(),
      .cos_sin = args.cos_sin.data<float>(),
      .num_rows = args.positions.dim(0),
      .half = args.inv_freq.dim(0),
      .attention_factor = args.attention_factor,
      .chunks = args.chunks,
  };
  as_cpu(stream).submit("rope_angles", [call](ThreadTeam& team) {
    // A sine and a cosine cost about as much as 32 elements of a memory-bound op.
    constexpr int64_t kCostOfAnAngle = 32;
    for_row_ranges(team, call.num_rows, call.half * kCostOfAnAngle,
                   [&](int64_t begin, int64_t end) { angle_rows(call, begin, end); });
  });
}

void CpuOps::rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args) const {
  expect_cpu_kv("rope_and_write_kv", args.kv.shape);
  SLUICE_CHECK(args.kv.shape.head_dim <= kMaxRopeHeadDim, "rope_and_write_kv: head_dim {}",
               args.kv.shape.head_dim);
  const RopeCall call{
      .qkv = reinterpret_cast<const uint16_t*>(args.qkv.bytes()),
      .q_norm = reinterpret_cast<const uint16_t*>(args.q_norm.bytes()),
      .k_norm = reinterpret_cast<const uint16_t*>(args.k_norm.bytes()),
      .cos_sin = args.cos_sin.data<float>(),
      .q_out = reinterpret_cast<uint16_t*>(args.q_out.bytes()),
      .kv_rows = args.kv_rows.data<int32_t>(),
      .kv = args.kv,
      .num_rows = args.qkv.dim(0),
      .num_q_heads = static_cast<int32_t>(args.q_out.dim(1)),
      .norm_eps = args.norm_eps,
      .norm_offset = args.norm_offset,
      .norm_channels = args.norm_channels,
      .kernels = &row_kernels(isa_),
  };
  as_cpu(stream).submit("rope_and_write_kv", [call, width = args.qkv.dim(1)](ThreadTeam& team) {
    for_row_ranges(team, call.num_rows, width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) rope_row(call, row);
    });
  });
}

}  // namespace sluice::cpu
