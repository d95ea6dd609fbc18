// A run of keys of one sequence as plain pointers and sizes, for kernels.
//
// Used by score_tiles and the ops of columns. Thread rule: values; checks on the host thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_stream.h"
#include "ops/attention/attention.h"
#include "ops/cuda/attention/kv_tensor_map.h"

namespace sluice::cuda {

struct KeyRunCall {
  const int32_t* kv_begin = nullptr;
  const int32_t* kv_end = nullptr;
  const int32_t* block_table = nullptr;
  const std::byte* kv_base = nullptr;
  int64_t kv_stride_bytes = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  int32_t max_blocks = 0;      // width of the table
  int32_t num_run_tiles = 0;   // of kMaskTileTokens, at most
  int32_t lines_per_head = 2;  // of kv_tensor_map.h
  int64_t head_elements = 0;   // of 16 bits, from the keys of a KV head to those of the next
};

// Of the args of an op that reads keys.
template <typename Args>
KeyRunCall key_run_of(const Args& args) {
  const KvBlockShape& kv = args.kv.shape;
  const int64_t num_tokens = args.block_table.dim(1) * kv.block_tokens;
  return {
      .kv_begin = args.kv_begin.template data<int32_t>(),
      .kv_end = args.kv_end.template data<int32_t>(),
      .block_table = args.block_table.template data<int32_t>(),
      .kv_base = args.kv.base,
      .kv_stride_bytes = static_cast<int64_t>(args.kv.stride_bytes),
      .num_kv_heads = kv.num_kv_heads,
      .head_dim = kv.head_dim,
      .block_tokens = kv.block_tokens,
      .max_blocks = static_cast<int32_t>(args.block_table.dim(1)),
      .num_run_tiles = static_cast<int32_t>((num_tokens + kMaskTileTokens - 1) / kMaskTileTokens),
      .lines_per_head = lines_per_head(kv),
      .head_elements = static_cast<int64_t>(kv.head_bytes() / 2)};
}

// Throws kUnsupported unless vectors of 16 bytes make up a key.
void check_key_width(const char* op, const CudaStream& stream, int32_t head_dim);

// The same, for keys in blocks, which begin at multiples of 16 bytes.
void check_key_run(const char* op, const CudaStream& stream, const KvBlocksView& kv);

// Returns the blocks of bf16 in which a kernel of keys finds them: `kv`, or, of keys in codes,
// those to which they are converted now, which `run` names afterwards. Order: inside `submit`,
// before the kernel; the next conversion on the stream overwrites them. Errors: kUnsupported if the
// scratch is too small.
KvBlocksView convert_key_run(CudaStream& stream, cudaStream_t handle, const KvBlocksView& kv,
                             KeyRunCall& run);

}  // namespace sluice::cuda
