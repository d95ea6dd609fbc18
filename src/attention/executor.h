// Executor: the walk over a sequence's KV that turns queries into attention output.
//
// model/decoder calls it once per layer. It checks the policy's phase, asks the policy what to
// attend to, and enqueues the attention op over the blocks where they live. It computes nothing
// itself. Today all blocks live in the device pool, so the walk is one run; when KV flows through a
// ring the same walk is several runs with a carried state, and not a bit changes (ops/attention.h).
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/policy.h"
#include "core/ids.h"
#include "kv/device_pool.h"
#include "ops/attention.h"

namespace sluice {

// The rows, sequences and KV places of one pass through the layers.
// Made by engine/runner once per pass; read by model/decoder and the executor for every layer.
// All views are device memory.
struct AttentionPass {
  Phase phase = Phase::kPrefill;
  AttentionBatch batch;
  TensorView kv_begin;     // i32 [num_seqs], 0 while all KV is resident
  TensorView kv_end;       // i32 [num_seqs]: tokens that exist once this pass has written its own
  TensorView block_table;  // i32 [num_seqs, max_blocks]: indices of pool blocks
  TensorView kv_slots;     // i32 [num_rows]: where each row's k and v go in the pool
  std::vector<SequenceId> sequences;
};

// What one layer asks for. Made by model/decoder.
struct LayerInput {
  int32_t layer = 0;
  TensorView q;    // bf16 [num_rows, num_q_heads, head_dim], after rope; k and v are in the pool
  TensorView out;  // bf16, same shape; may be the memory of q
  float scale = 1.0f;
};

class Executor {
 public:
  // REQUIRES: policy and pool outlive the executor.
  Executor(Policy& policy, DevicePool& pool) : policy_(policy), pool_(pool) {}

  // Where this layer's new k and v are written before `attend`.
  KvBlocksView write_target(int32_t layer) const { return pool_.layer(layer); }

  // Attention of every row of the pass over its sequence's KV, in stream order.
  // Errors: kUnsupported when the policy does not do the pass's phase.
  void attend(Stream& stream, const AttentionPass& pass, const LayerInput& input);

 private:
  Policy& policy_;
  DevicePool& pool_;
};

}  // namespace sluice
