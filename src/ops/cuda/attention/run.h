// Sizes of the run of an attention call that the host can compute without reading device memory.
//
// Used by ops/cuda/attention/decode/decode.cc, attention/prefill/prefill.cc and
// attention/prefill/split.h. Thread rule: host only, pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/attention.h"

namespace sluice::cuda {

// An upper bound of the tokens of a sequence's run: the context, and what the block table holds.
inline int64_t max_run_tokens(const AttentionArgs& args) {
  const int64_t tokens = args.batch.max_kv_tokens;
  if (gathered_in(args.selection) != nullptr) return tokens;
  const int64_t table_blocks = args.block_table.dim(1);
  const int64_t blocks = std::min<int64_t>(table_blocks, args.kv.num_blocks);
  return std::min(tokens, blocks * args.kv.shape.block_tokens);
}

}  // namespace sluice::cuda
