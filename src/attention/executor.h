// Executor: enqueues the attention of one layer over the KV of the sequences of a pass.
//
// model/decoder calls it once per layer. It passes the written keys to both policies, gets the
// selection of the policy of the pass's phase, and enqueues the attention op over the blocks in
// their memory. A Residency (residency.h) owns one of two kinds: ResidentExecutor (all KV in the
// device pool, one run) and OffloadExecutor (history through the ring, several runs with a carried
// state). Both visit the same tiles in the same order, so their results have the same bits
// (ops/attention/attention.h).
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "attention/policy_pair.h"
#include "attention/tile_scorer.h"
#include "core/ids.h"
#include "ops/attention/attention.h"

namespace sluice {

// The rows, sequences and KV blocks of one pass through the layers.
// Made by engine/runner once per pass, its views of KV by the Residency; read by model/decoder and
// the executor for every layer. All views are device memory. With offloaded KV, kv_begin,
// block_table and kv_rows describe the blocks that the pass itself writes.
struct AttentionPass {
  PassKind kind;
  AttentionBatch batch;
  TensorView kv_end;         // i32 [num_seqs]: tokens of each sequence, this pass included
  TensorView chunk_borders;  // i32 [n]: 0, 1, 2, ... times the tokens of a chunk of a model with
                             // dual chunk attention; else absent
  std::span<const PrefillSpan> spans;  // [num_seqs], host memory; prefill only
  // Set by Residency::describe.
  TensorView kv_begin;     // i32 [num_seqs]: position of the first token in block_table
  TensorView block_table;  // i32 [num_seqs, max_blocks]: blocks from kv_begin on
  TensorView block_ids;    // i32 [num_seqs, max_ids]: BlockIds from position 0 on, if a policy
                           // needs them
  TensorView kv_rows;      // i32 [num_rows]: block * block_tokens + offset for k and v; -1: none
};

// The sequences of a pass that one walk covers: all of them, or one. Views as in AttentionPass, for
// these sequences.
struct PassPart {
  int64_t first_seq = 0;
  int64_t num_seqs = 0;
  AttentionBatch batch;
  TensorView kv_begin;
  TensorView kv_end;
  TensorView block_table;
  TensorView block_ids;
};

// Sequences [first_seq, first_seq + num_seqs) of a pass. Rows stay those of the whole pass.
PassPart part_of(const AttentionPass& pass, int64_t first_seq, int64_t num_seqs);

// The queries and the output of one layer. Made by model/decoder.
struct LayerInput {
  LayerId layer;
  TensorView q;      // bf16 [num_rows, num_q_heads, head_dim], after rope; k and v are written
  TensorView out;    // bf16, same shape; may be the memory of q
  QueryZones zones;  // of rows past the first chunk of a model with dual chunk attention
  float scale = 1.0f;
};

class Executor {
 public:
  // `layout`: of the blocks that are walked; `chunk_tokens`: of dual chunk attention, or 0.
  // REQUIRES: the policies outlive the executor.
  Executor(PolicyPair& policies, const KvLayout& layout, int64_t chunk_tokens = 0);
  virtual ~Executor() = default;

  // The blocks into which this layer's k and v are written before `attend`. Called once per layer.
  virtual KvBlocksView write_target(const AttentionPass& pass, LayerId layer) = 0;

  // Attention of every row of the pass over its sequence's KV, in stream order.
  void attend(Stream& stream, const AttentionPass& pass, const LayerInput& input);

 protected:
  // One of the walks of the prefill policy over the keys of a window (Policy::num_walks).
  struct KeyWalk {
    LayerId layer;
    int32_t index = 0;
  };
  using VisitKeys = std::function<void(const KeyRun&)>;

  const PolicyPair& policies() const { return policies_; }
  const SelectionRule& rule(PassKind kind) const { return rules_.of(kind); }
  // Whether the policy of the pass's phase is asked.
  bool selects(const AttentionPass& pass) const;
  // The call of `batch`'s rows over one run, which is the whole walk unless the caller says
  // otherwise.
  static AttentionArgs args_of(const LayerInput& input, const AttentionBatch& batch,
                               const KeyRun& run, const Selection& selection);
  // Enqueues one attention call of a walk, after the audit of the same keys.
  void attend_keys(Stream& stream, const AttentionArgs& args);
  // What a layer visits of the keys of a span before it attends: walks [first_walk, num_walks) in
  // each window. No windows if its policy scores nothing.
  struct KeyVisits {
    int64_t num_windows = 0;
    int32_t first_walk = 0;
    int32_t num_walks = 0;
  };
  KeyVisits key_visits(LayerId layer, const PrefillSpan& span) const;

 private:
  // The same blocks, after the write.
  virtual KvBlocksView written(const AttentionPass& pass, LayerId layer) const = 0;
  // Calls `visit` for the runs of keys of `part`, one sequence of a prefill pass, from position 0
  // to the pass's end in ascending order. The keys of a run's blocks are valid in stream order
  // until `visit` returns, and the values, too, if the policy copies columns in this walk.
  virtual void for_each_key_run(Stream& stream, const AttentionPass& pass, const PassPart& part,
                                const KeyWalk& walk, const VisitKeys& visit) = 0;
  // Whether `walk` needs page lists in this pass, even if they name all pages.
  virtual bool needs_lists() const { return false; }
  // Enqueues the attention of the rows of `part` under `selection`.
  virtual void walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
                    const LayerInput& input, const Selection& selection) = 0;
  // Called after the walks of all parts.
  virtual void end_layer(const AttentionPass&, LayerId /*layer*/) {}

  void show_written(Stream& stream, const AttentionPass& pass, LayerId layer);
  Selection select(Stream& stream, const AttentionPass& pass, const PassPart& part,
                   const LayerInput& input);
  TileRows window_at(const PrefillSpan& span, int64_t first, int64_t window_rows) const;
  void score_windows(Stream& stream, const AttentionPass& pass, const PassPart& part,
                     const SelectInput& input);
  void score_run(Stream& stream, const TensorView& borders, const SelectInput& input,
                 const TileRows& window, const KeyRun& run, int64_t begin_pos);

  PolicyPair& policies_;
  int32_t num_layers_;
  int32_t block_tokens_;
  int64_t chunk_tokens_;
  PassRules rules_;
};

}  // namespace sluice
