// Converts blocks of codes to bf16. Bound: bytes, 129 read and 256 written for each key and value
// of 128 channels. A CTA takes the keys or the values of one block and KV head, a line; a thread 16
// channels of a row at a time.
#include <algorithm>

#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/attention/converted_kv.h"
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
  // Lines are the keys and the values of the KV heads in turn; every line_step-th becomes the next.
  int32_t first_line = 0;
  int32_t line_step = 1;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  int64_t head_bytes = 0;  // from the keys of a KV head to those of the next
  int64_t key_bytes = 0;   // to its values
  bool has_coded_keys = true;
  KvCodec codec;
};

// 16 channels of a row as bf16; `from`: the keys, or the values, of a head in a block.
struct ConvertedPiece {
  Bf16x8 low;
  Bf16x8 high;
};
__device__ inline ConvertedPiece load_piece(const ConvertCall& call, const std::byte* from,
                                            bool is_coded, int32_t row, int32_t channel) {
  if (!is_coded) {
    const auto* numbers =
        reinterpret_cast<const Bf16x8*>(from + (int64_t{row} * call.head_dim + channel) * 2);
    return {numbers[0], numbers[1]};
  }
  // 16 rows, then their scales.
  const std::byte* group = from + int64_t{row / kKvScaleTile * kKvScaleTile} * (call.head_dim + 1);
  const int32_t in_group = row % kKvScaleTile;
  const uint4 codes = *reinterpret_cast<const uint4*>(group + in_group * call.head_dim + channel);
  const uint32_t factors = row_factors(
      call.codec, static_cast<uint32_t>(group[kKvScaleTile * call.head_dim + in_group]));
  return {turn_codes(call.codec, uint2{codes.x, codes.y}, factors),
          turn_codes(call.codec, uint2{codes.z, codes.w}, factors)};
}

// grid: (blocks of all sequences, lines). Blocks past the end of a run are left as they are: no
// kernel reads them.
__global__ void __launch_bounds__(kThreads)
    convert_kv_kernel(const __grid_constant__ ConvertCall call) {
  const auto place = static_cast<int32_t>(blockIdx.x);
  const int32_t seq = place / call.max_blocks;
  const int32_t entry = place % call.max_blocks;
  const auto line = static_cast<int32_t>(blockIdx.y);
  if (line == 0 && threadIdx.x == 0) call.to_table[place] = place;
  if (entry * call.block_tokens >= call.kv_end[seq] - call.kv_begin[seq]) return;

  const int32_t block = call.table[static_cast<int64_t>(seq) * call.table_width + entry];
  const int32_t from_line = call.first_line + line * call.line_step;
  const bool is_value = from_line % 2 != 0;
  const bool is_coded = is_value || call.has_coded_keys;
  const std::byte* from = call.from + block * call.from_stride_bytes +
                          from_line / 2 * call.head_bytes + (is_value ? call.key_bytes : 0);
  std::byte* to = call.to + place * call.to_stride_bytes +
                  line * int64_t{call.block_tokens} * call.head_dim * 2;
  const int32_t pieces = call.head_dim / kPieceChannels;
  const int32_t rows_at_once = kThreads / pieces;
  const int32_t piece = static_cast<int32_t>(threadIdx.x) % pieces;
  const int32_t first_row = static_cast<int32_t>(threadIdx.x) / pieces;
  if (first_row >= rows_at_once) return;  // a head_dim whose pieces do not divide the threads
#pragma unroll 4
  for (int32_t row = first_row; row < call.block_tokens; row += rows_at_once) {
    const ConvertedPiece converted = load_piece(call, from, is_coded, row, piece * kPieceChannels);
    auto* bf16 =
        reinterpret_cast<Bf16x8*>(to + (int64_t{row} * call.head_dim + piece * kPieceChannels) * 2);
    bf16[0] = converted.low;
    bf16[1] = converted.high;
  }
}

// Blocks that the run of a sequence has at most.
int32_t max_run_blocks(const AttentionArgs& args) {
  const int32_t block_tokens = args.kv.shape.block_tokens;
  const int64_t num_blocks = (max_run_tokens(args) + block_tokens - 1) / block_tokens;
  return static_cast<int32_t>(std::max<int64_t>(num_blocks, 1));
}

// Blocks of `num_lines` lines. Of an odd number, the last line of a block is left unused.
KvBlockShape converted_shape(const KvBlockShape& from, int32_t num_lines) {
  return {.num_kv_heads = (num_lines + 1) / 2,
          .head_dim = from.head_dim,
          .block_tokens = from.block_tokens};
}

// Blocks that the scratch holds, with their table.
int64_t num_places(size_t scratch_bytes, const KvBlockShape& shape) {
  const size_t block_bytes = kv_scratch_block_bytes(scratch_bytes);
  return static_cast<int64_t>(std::min(block_bytes / shape.block_bytes(),
                                       kv_scratch_table_bytes(block_bytes) / sizeof(int32_t)));
}

// The fields of blocks; those of runs and lines are left.
ConvertCall call_of(const KvBlocksView& kv) {
  return {.from = kv.base,
          .from_stride_bytes = static_cast<int64_t>(kv.stride_bytes),
          .head_dim = kv.shape.head_dim,
          .block_tokens = kv.shape.block_tokens,
          .head_bytes = static_cast<int64_t>(kv.shape.head_bytes()),
          .key_bytes = static_cast<int64_t>(kv.shape.keys().bytes()),
          .has_coded_keys = kv_codes(kv.shape) == KvCodes::kAll,
          .codec = kv_codec(kv.shape.element)};
}

// Sets where converted blocks and their table lie, and launches. The table is written by the
// kernel: it names places in ascending order, and kernels read it as any other.
ConvertedKv convert_lines(cudaStream_t handle, ConvertCall call, int32_t num_seqs,
                          int32_t num_lines, const KvScratch& scratch) {
  const KvBlockShape shape =
      converted_shape({.head_dim = call.head_dim, .block_tokens = call.block_tokens}, num_lines);
  const int32_t num_blocks = num_seqs * call.max_blocks;
  call.to = scratch.data();
  call.to_stride_bytes = static_cast<int64_t>(shape.block_bytes());
  call.to_table =
      reinterpret_cast<int32_t*>(scratch.data() + kv_scratch_block_bytes(scratch.num_bytes()));
  const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(num_lines));
  convert_kv_kernel<<<grid, kThreads, 0, handle>>>(call);
  check_cuda(cudaGetLastError(), "launch of the conversion of KV");
  return {.kv = {.base = scratch.data(),
                 .stride_bytes = shape.block_bytes(),
                 .num_blocks = num_blocks,
                 .shape = shape},
          .block_table = call.to_table,
          .max_blocks = call.max_blocks};
}

}  // namespace

// All sequences of a few heads at a time, so that a launch has enough CTAs; where not even one head
// of all fits, one head of as many sequences as do.
CallPart choose_call_part(const AttentionArgs& args, size_t scratch_bytes) {
  const auto num_seqs = static_cast<int32_t>(args.batch.first_pos.dim(0));
  const int32_t all_heads = args.kv.shape.num_kv_heads;
  // Of one head of one sequence.
  const int64_t num_runs =
      num_places(scratch_bytes, converted_shape(args.kv.shape, 2)) / max_run_blocks(args);
  if (num_runs < num_seqs) {
    return {.num_seqs = static_cast<int32_t>(num_runs), .num_heads = 1};
  }
  auto num_heads = static_cast<int32_t>(std::min<int64_t>(num_runs / num_seqs, all_heads));
  while (all_heads % num_heads != 0) --num_heads;
  return {.num_seqs = num_seqs, .num_heads = num_heads};
}

ConvertedKv convert_kv(cudaStream_t handle, const AttentionArgs& args, const CallPart& part,
                       const KvScratch& scratch) {
  const auto table_width = static_cast<int32_t>(args.block_table.dim(1));
  ConvertCall call = call_of(args.kv);
  call.kv_begin = args.kv_begin.data<int32_t>() + part.first_seq;
  call.kv_end = args.kv_end.data<int32_t>() + part.first_seq;
  call.table = args.block_table.data<int32_t>() + int64_t{part.first_seq} * table_width;
  call.table_width = table_width;
  call.max_blocks = max_run_blocks(args);
  call.first_line = 2 * part.first_head;
  return convert_lines(handle, call, part.num_seqs, 2 * part.num_heads, scratch);
}

ConvertedKv convert_keys(cudaStream_t handle, const CodedRun& run, const KvScratch& scratch) {
  const KvBlockShape& shape = run.kv.shape;
  const int64_t most = num_places(scratch.num_bytes(), converted_shape(shape, shape.num_kv_heads));
  if (run.max_blocks > most) {
    fail(ErrorCode::kUnsupported,
         "keys of {} become bf16 before they are scored: {} blocks of {} tokens, and the scratch "
         "of the stream holds {}; prepare it for the longest run",
         kv_element_name(shape.element), run.max_blocks, shape.block_tokens, most);
  }
  ConvertCall call = call_of(run.kv);
  call.kv_begin = run.kv_begin;
  call.kv_end = run.kv_end;
  call.table = run.block_table;
  call.max_blocks = run.max_blocks;
  call.line_step = 2;
  return convert_lines(handle, call, 1, shape.num_kv_heads, scratch);
}

}  // namespace sluice::cuda
