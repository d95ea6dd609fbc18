// One call of attention over random KV, as the attention benchmarks measure it: all sequences of a
// call have the same number of rows and tokens.
//
// Used by cpu_attention_bench, cuda_attention_bench and cuda_decode_bench, each with the memory of
// its own workbench. Thread rule: main thread.
#pragma once

#include <cmath>
#include <numeric>
#include <vector>

#include "ops/attention/attention.h"

namespace sluice::bench {

struct AttentionCallShape {
  int32_t num_seqs = 1;
  int32_t num_rows = 1;    // of each sequence: the last of its tokens
  int32_t num_tokens = 0;  // of each sequence
  int32_t num_q_heads = 16;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t block_tokens = 256;
  KvElement element = KvElement::kBFloat16;  // kE4m3: numbers and scales of any bits

  int32_t seq_blocks() const { return (num_tokens + block_tokens - 1) / block_tokens; }
};

// The arguments of a call over all tokens, without block table, lists and state. `num_blocks`
// blocks of KV are made; the call reads num_seqs * seq_blocks() of them.
//
// Bench: a workbench with tensor(dtype, dims), filled with random numbers, and tensor(values,
// dims).
template <typename Bench>
AttentionArgs attention_call(Bench& bench, const AttentionCallShape& shape, int32_t num_blocks) {
  const int64_t seqs = shape.num_seqs;
  const int64_t rows = seqs * shape.num_rows;
  const auto all = [&](int32_t value) {
    return bench.tensor(std::vector<int32_t>(static_cast<size_t>(seqs), value), {seqs});
  };
  std::vector<int32_t> row_begin(static_cast<size_t>(seqs + 1));
  for (size_t i = 1; i < row_begin.size(); ++i) row_begin[i] = row_begin[i - 1] + shape.num_rows;
  AttentionArgs args;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  args.q = bench.tensor(DType::kBF16, {rows, shape.num_q_heads, shape.head_dim});
  args.out = bench.tensor(DType::kBF16, {rows, shape.num_q_heads, shape.head_dim});
  args.batch = {.row_begin = bench.tensor(row_begin, {seqs + 1}),
                .first_pos = all(shape.num_tokens - shape.num_rows),
                .max_rows = shape.num_rows,
                .max_kv_tokens = shape.num_tokens};
  args.kv_begin = all(0);
  args.kv_end = all(shape.num_tokens);
  args.kv.shape = {.num_kv_heads = shape.num_kv_heads,
                   .head_dim = shape.head_dim,
                   .block_tokens = shape.block_tokens,
                   .element = shape.element};
  args.kv.num_blocks = num_blocks;
  args.kv.stride_bytes = args.kv.shape.block_bytes();
  args.kv.base =
      bench.tensor(DType::kBF16, {num_blocks, static_cast<int64_t>(args.kv.stride_bytes / 2)})
          .bytes();
  return args;
}

// The table of one sequence, with its blocks in descending order: neighbours in the sequence are
// not neighbours in memory. [1][num_blocks].
template <typename Bench>
TensorView reversed_table(Bench& bench, int32_t num_blocks) {
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  std::iota(table.rbegin(), table.rend(), 0);
  return bench.tensor(table, {1, num_blocks});
}

}  // namespace sluice::bench
