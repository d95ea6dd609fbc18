// Executor: the walk over a sequence's KV that turns queries into attention output.
//
// model/decoder calls it once per layer. It shows the policies the keys that were written, asks the
// one of the pass's phase what to attend to, and enqueues the attention op over the blocks where
// they live. It computes nothing itself. A Residency (residency.h) owns one of two kinds:
// ResidentExecutor (all in the device pool, one run) and OffloadExecutor (history through the ring,
// several runs with a carried state). The walk is the same, and so are the bits (ops/attention.h).
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/policy_pair.h"
#include "core/ids.h"
#include "ops/attention.h"

namespace sluice {

// The rows, sequences and KV blocks of one pass through the layers.
// Made by engine/runner once per pass, the views of KV by its Residency; read by model/decoder and
// the executor for every layer. All views are device memory. Where not all KV of a sequence is in
// one memory, the views speak of the blocks that the pass itself writes.
struct AttentionPass {
  Phase phase = Phase::kPrefill;
  AttentionBatch batch;
  TensorView kv_end;  // i32 [num_seqs]: tokens that exist once this pass has written its own
  // By Residency::describe.
  TensorView kv_begin;     // i32 [num_seqs]
  TensorView block_table;  // i32 [num_seqs, max_blocks]: blocks from kv_begin on
  TensorView block_ids;    // i32 [num_seqs, max_ids]: BlockIds from position 0 on, if a policy
                           // needs them
  TensorView kv_rows;      // i32 [num_rows]: where each row's k and v go
};

// Neighbouring sequences of a pass that are walked together: all of them, or one.
struct PassPart {
  int64_t first_seq = 0;
  int64_t num_seqs = 0;
  AttentionBatch batch;
  TensorView kv_begin;
  TensorView kv_end;
  TensorView block_table;
  TensorView block_ids;
};

PassPart part_of(const AttentionPass& pass, int64_t first_seq, int64_t num_seqs);

// What one layer asks for. Made by model/decoder.
struct LayerInput {
  LayerId layer;
  TensorView q;    // bf16 [num_rows, num_q_heads, head_dim], after rope; k and v are written
  TensorView out;  // bf16, same shape; may be the memory of q
  float scale = 1.0f;
};

class Executor {
 public:
  // `block`: the shape of the blocks that are walked.
  // REQUIRES: the policies outlive the executor.
  Executor(PolicyPair& policies, const KvBlockShape& block);
  virtual ~Executor() = default;

  // Where this layer's new k and v are written before `attend`. Called once per layer.
  virtual KvBlocksView write_target(const AttentionPass& pass, LayerId layer) = 0;

  // Attention of every row of the pass over its sequence's KV, in stream order.
  void attend(Stream& stream, const AttentionPass& pass, const LayerInput& input);

 protected:
  const PolicyPair& policies() const { return policies_; }
  const SelectionRule& rule(Phase phase) const {
    return phase == Phase::kPrefill ? prefill_rule_ : decode_rule_;
  }

 private:
  // Where this layer's new k and v are now.
  virtual KvBlocksView written(const AttentionPass& pass, LayerId layer) const = 0;
  // Whether `walk` wants lists of the pass, even if they name everything.
  virtual bool needs_lists() const { return false; }
  virtual void walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
                    const LayerInput& input, const Selection& selection) = 0;
  // Called when every part of the pass was walked.
  virtual void end_layer(const AttentionPass&, LayerId /*layer*/) {}

  bool selects(const AttentionPass& pass) const;
  void show_written(Stream& stream, const AttentionPass& pass, LayerId layer);

  PolicyPair& policies_;
  SelectionRule prefill_rule_;
  SelectionRule decode_rule_;
};

}  // namespace sluice
