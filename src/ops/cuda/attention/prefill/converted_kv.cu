// Converts blocks of codes to bf16. Bound: bytes, 129 read and 256 written for each key and value
// of 128 channels. A CTA takes the keys or the values of one block and KV head; a thread 16
// channels of a row at a time.
#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/attention/prefill/converted_kv.h"
#include "ops/cuda/attention/run.h"
#include "ops/cuda/kv_codec.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieceChannels = 16;

struct ConvertCall {
  const std::byte* from = nullptr;
  int64_t from_stride_bytes = 0;
  std::byte* to = nullptr;
  int64_t to_stride_bytes = 0;
  const int32_t* kv_begin = nullptr;  // of the part's sequences
  const int32_t* kv_end = nullptr;
  const int32_t* table = nullptr;  // of the part's sequences, `table_width` wide
  int32_t* to_table = nullptr;
  int32_t table_width = 0;
  int32_t max_blocks = 0;  // of a sequence
  int32_t first_head = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  KvCodec codec;
};

// grid: (blocks of all sequences, planes of the part: keys and values of each head). Blocks past
// the end of a run are left as they are: no kernel reads them.
__global__ void __launch_bounds__(kThreads)
    convert_kv_kernel(const __grid_constant__ ConvertCall call) {
  const auto place = static_cast<int32_t>(blockIdx.x);
  const int32_t seq = place / call.max_blocks;
  const int32_t entry = place % call.max_blocks;
  const auto plane = static_cast<int32_t>(blockIdx.y);
  if (plane == 0 && threadIdx.x == 0) call.to_table[place] = place;
  if (entry * call.block_tokens >= call.kv_end[seq] - call.kv_begin[seq]) return;

  const int32_t block = call.table[static_cast<int64_t>(seq) * call.table_width + entry];
  const int64_t token_bytes = call.head_dim + 1;
  const std::byte* from = call.from + block * call.from_stride_bytes +
                          (2 * call.first_head + plane) * int64_t{call.block_tokens} * token_bytes;
  std::byte* to = call.to + place * call.to_stride_bytes +
                  plane * int64_t{call.block_tokens} * call.head_dim * 2;
  const int32_t pieces = call.head_dim / kPieceChannels;
  const int32_t rows_at_once = kThreads / pieces;
  const int32_t piece = static_cast<int32_t>(threadIdx.x) % pieces;
  const int32_t first_row = static_cast<int32_t>(threadIdx.x) / pieces;
  if (first_row >= rows_at_once) return;  // a head_dim whose pieces do not divide the threads
#pragma unroll 4
  for (int32_t row = first_row; row < call.block_tokens; row += rows_at_once) {
    // 16 rows, then their scales.
    const std::byte* group = from + row / kKvScaleTile * kKvScaleTile * token_bytes;
    const int32_t in_group = row % kKvScaleTile;
    const uint4 codes =
        *reinterpret_cast<const uint4*>(group + in_group * call.head_dim + piece * kPieceChannels);
    const uint32_t factors = row_factors(
        call.codec, static_cast<uint32_t>(group[kKvScaleTile * call.head_dim + in_group]));
    auto* line =
        reinterpret_cast<Bf16x8*>(to + (int64_t{row} * call.head_dim + piece * kPieceChannels) * 2);
    line[0] = turn_codes(call.codec, uint2{codes.x, codes.y}, factors);
    line[1] = turn_codes(call.codec, uint2{codes.z, codes.w}, factors);
  }
}

// Blocks that the run of a sequence has at most.
int32_t max_run_blocks(const AttentionArgs& args) {
  const int32_t block_tokens = args.kv.shape.block_tokens;
  const int64_t num_blocks = (max_run_tokens(args) + block_tokens - 1) / block_tokens;
  return static_cast<int32_t>(std::max<int64_t>(num_blocks, 1));
}

KvBlockShape converted_shape(const AttentionArgs& args, int32_t num_heads) {
  KvBlockShape shape = args.kv.shape;
  shape.num_kv_heads = num_heads;
  shape.element = KvElement::kBFloat16;
  return shape;
}

}  // namespace

// All sequences of a few heads at a time, so that a launch has enough CTAs; where not even one head
// of all fits, one head of as many sequences as do.
CallPart choose_call_part(const AttentionArgs& args, size_t scratch_bytes) {
  const auto num_seqs = static_cast<int32_t>(args.batch.first_pos.dim(0));
  const int32_t all_heads = args.kv.shape.num_kv_heads;
  const size_t head_bytes = converted_shape(args, 1).block_bytes();  // of a block
  const auto num_places = static_cast<int64_t>(kv_scratch_block_bytes(scratch_bytes) / head_bytes);
  const int64_t num_runs = num_places / max_run_blocks(args);  // of one head of one sequence
  if (num_runs < num_seqs) {
    return {.num_seqs = static_cast<int32_t>(num_runs), .num_heads = 1};
  }
  auto num_heads = static_cast<int32_t>(std::min<int64_t>(num_runs / num_seqs, all_heads));
  while (all_heads % num_heads != 0) --num_heads;
  return {.num_seqs = num_seqs, .num_heads = num_heads};
}

// The table of converted blocks is written by the kernel: it names places in ascending order, and
// attention reads it as any other.
ConvertedKv convert_kv(cudaStream_t handle, const AttentionArgs& args, const CallPart& part,
                       const KvScratch& scratch) {
  const KvBlockShape shape = converted_shape(args, part.num_heads);
  const int32_t max_blocks = max_run_blocks(args);
  const int32_t num_blocks = part.num_seqs * max_blocks;
  auto* table =
      reinterpret_cast<int32_t*>(scratch.data() + kv_scratch_block_bytes(scratch.num_bytes()));
  const auto table_width = static_cast<int32_t>(args.block_table.dim(1));
  const ConvertCall call{
      .from = args.kv.base,
      .from_stride_bytes = static_cast<int64_t>(args.kv.stride_bytes),
      .to = scratch.data(),
      .to_stride_bytes = static_cast<int64_t>(shape.block_bytes()),
      .kv_begin = args.kv_begin.data<int32_t>() + part.first_seq,
      .kv_end = args.kv_end.data<int32_t>() + part.first_seq,
      .table = args.block_table.data<int32_t>() + int64_t{part.first_seq} * table_width,
      .to_table = table,
      .table_width = table_width,
      .max_blocks = max_blocks,
      .first_head = part.first_head,
      .head_dim = shape.head_dim,
      .block_tokens = shape.block_tokens,
      .codec = kv_codec(args.kv.shape.element),
  };
  const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(2 * part.num_heads));
  convert_kv_kernel<<<grid, kThreads, 0, handle>>>(call);
  check_cuda(cudaGetLastError(), "launch of the conversion of KV");
  return {.kv = {.base = scratch.data(),
                 .stride_bytes = shape.block_bytes(),
                 .num_blocks = num_blocks,
                 .shape = shape},
          .block_table = table,
          .max_blocks = max_blocks};
}

}  // namespace sluice::cuda
