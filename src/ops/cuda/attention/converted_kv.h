// KV in codes as bf16 blocks in scratch memory, for kernels that read bf16. Keys in bf16 beside
// values in codes are copied.
//
// Prefill reads every key and value once for each tile of rows, and turning a tile of codes into
// bf16 takes longer than its products; so with many rows all of it is turned once before, for as
// many KV heads and sequences at a time as the scratch holds. Kernels that score keys have no other
// way to read codes, and get the keys of all heads at once. What codes stand for is exactly a bf16,
// so nothing is rounded. Used by attention/prefill/prefill.cc and the ops of tiles. Thread rule:
// the thread that enqueues on the stream, inside `submit`.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/attention/attention.h"
#include "ops/cuda/attention/scratch.h"

namespace sluice::cuda {

// A part of a call: some of its sequences, and some of the KV heads of each.
struct CallPart {
  int32_t first_seq = 0;
  int32_t num_seqs = 0;
  int32_t first_head = 0;
  int32_t num_heads = 0;
};

// The largest parts whose bf16 the scratch holds: all sequences and as many KV heads as fit, a
// divisor of all; or one head of some sequences. num_seqs 0: not even one head of one sequence
// fits. The part is the first one.
CallPart choose_call_part(const AttentionArgs& args, size_t scratch_bytes);

// The KV of a part: blocks of bf16 with the part's heads, and a table i32 [num_seqs, max_blocks].
struct ConvertedKv {
  KvBlocksView kv;
  const int32_t* block_table = nullptr;
  int32_t max_blocks = 0;
};

// Converts the runs of the part's sequences and writes their table.
// REQUIRES: the part is not larger than choose_call_part's; a head_dim that is a multiple of 16.
ConvertedKv convert_kv(cudaStream_t handle, const AttentionArgs& args, const CallPart& part,
                       const KvScratch& scratch);

// The run of one sequence: blocks from kv_begin on.
struct CodedRun {
  KvBlocksView kv;
  const int32_t* kv_begin = nullptr;
  const int32_t* kv_end = nullptr;
  const int32_t* block_table = nullptr;
  int32_t max_blocks = 0;  // width of the table
};

// Converts the keys of a run without its values: in a converted block those of a KV head are
// followed by those of the next head.
// REQUIRES: a head_dim that is a multiple of 16. Errors: kUnsupported if the scratch is too small.
ConvertedKv convert_keys(cudaStream_t handle, const CodedRun& run, const KvScratch& scratch);

}  // namespace sluice::cuda
