// Executor: the walk over a sequence's KV that turns queries into attention output.
//
// model/decoder calls it once per layer. It checks the policy's phase, shows it the keys that were
// written, asks it what to attend to, and enqueues the attention op over the blocks where they
// live. It computes nothing itself. Where the blocks live is what the two kinds differ in:
// ResidentExecutor (all in the device pool, one run) and OffloadExecutor (history through the ring,
// several runs with a carried state). The walk is the same, and so are the bits (ops/attention.h).
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/policy.h"
#include "core/ids.h"
#include "ops/attention.h"

namespace sluice {

// A run of one sequence's blocks in order of position: a slotful that comes from the host tier, or
// neighbours that stay on the device.
struct HistoryBlocks {
  HistoryRange range;
  std::vector<BlockId> blocks;
  std::vector<int32_t>
      places;  // of resident blocks (OffloadEngine::residents); empty: to be loaded

  bool is_resident() const { return !places.empty(); }
};

// A run of one sequence's history. The same for every layer.
struct HistoryRun : HistoryBlocks {
  int32_t seq_index = 0;   // of the pass
  TensorView kv_begin;     // i32 [1]: position of the first token
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, num_blocks]: places, or 0, 1, 2, ... in the slot
};

// A block that a prefill pass writes to the stage, and where it goes afterwards: full ones to the
// host, a last partial one to the sequence's tail.
struct StagedOutcome {
  int32_t stage_index = 0;
  BlockId host_id;          // full blocks
  int32_t tail_index = -1;  // the partial one
  bool begins_sequence = false;
};

// The rows, sequences and KV places of one pass through the layers.
// Made by engine/runner once per pass; read by model/decoder and the executor for every layer.
// All views are device memory. With offloaded KV, kv_begin, kv_end, block_table and kv_slots speak
// of the pass's own blocks (stage or tails) and the tokens before them are `history`.
struct AttentionPass {
  Phase phase = Phase::kPrefill;
  AttentionBatch batch;
  TensorView kv_begin;     // i32 [num_seqs]
  TensorView kv_end;       // i32 [num_seqs]: tokens that exist once this pass has written its own
  TensorView block_table;  // i32 [num_seqs, max_blocks]: blocks from kv_begin on
  TensorView block_ids;    // i32 [num_seqs, max_ids]: BlockIds from position 0 on, if the policy
                           // wants them
  TensorView kv_slots;     // i32 [num_rows]: where each row's k and v go
  std::vector<SequenceId> sequences;

  // Offloaded KV only.
  bool is_in_place = false;           // decode: nothing has to come, all blocks of all sequences
                                      // are on the device
  std::vector<HistoryRun> history;    // in order of sequence, then position; none where the
                                      // executor gathers, or in place
  std::vector<BlockId> gathered;      // where it gathers: all blocks that lists could name and
                                      // that are not resident
  TensorView block_places;            // i32 [num_seqs, max_places]: where the sequence's blocks are
                                      // on the device (OffloadEngine::device_blocks), or -1;
                                      // absent: nothing stays there, or the pass does not ask
  TensorView history_begin;           // i32 [num_seqs]: 0
  std::vector<StagedOutcome> staged;  // prefill only, in order of stage_index
  TensorView slot_table;              // i32 [1, slot_blocks]: 0, 1, 2, ...
  TensorView slot_begin;              // i32 [max_slotfuls]: 0, the tokens of a slot, of two, ...
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
  int32_t layer = 0;
  TensorView q;    // bf16 [num_rows, num_q_heads, head_dim], after rope; k and v are written
  TensorView out;  // bf16, same shape; may be the memory of q
  float scale = 1.0f;
};

class Executor {
 public:
  // REQUIRES: the policy outlives the executor.
  explicit Executor(Policy& policy) : policy_(policy) {}
  virtual ~Executor() = default;

  // Called once before anything of a pass is enqueued, and once when all of it is, or has failed.
  // Between the two lies what is recorded of a pass that is `capturable`, and only that.
  // REQUIRES: `pass` stays as it is in between.
  virtual void begin_pass(const AttentionPass& pass) = 0;
  virtual void end_pass() {}

  // Called after end_pass, with the history that the next one will probably
  // have. A wrong guess costs transfers, never a result.
  virtual void expect_next([[maybe_unused]] std::vector<HistoryBlocks> history) {}

  // Whether such a pass fetches listed pages instead of walking runs of history, unless all of it
  // is in place.
  virtual bool gathers(Phase) const { return false; }

  // Where this layer's new k and v are written before `attend`. Called once per layer.
  virtual KvBlocksView write_target(const AttentionPass& pass, int32_t layer) = 0;

  // Attention of every row of the pass over its sequence's KV, in stream order.
  // Errors: kUnsupported when the policy does not do the pass's phase.
  void attend(Stream& stream, const AttentionPass& pass, const LayerInput& input);

  // Whether a decode pass may be padded, recorded and replayed (engine/decode_graphs.h): what is
  // enqueued depends on the shapes of the pass alone, and on whether it is in place.
  virtual bool capturable(bool is_in_place) const = 0;

 protected:
  const Policy& policy() const { return policy_; }

 private:
  // Where this layer's new k and v are now.
  virtual KvBlocksView written(const AttentionPass& pass, int32_t layer) const = 0;
  // Whether `walk` wants lists of the pass, even if they name everything.
  virtual bool needs_lists() const { return false; }
  virtual void walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
                    const LayerInput& input, const Selection& selection) = 0;
  // Called when every part of the pass was walked.
  virtual void end_layer(const AttentionPass&, int32_t /*layer*/) {}

  bool makes_lists(const AttentionPass& pass) const;
  void show_written(Stream& stream, const AttentionPass& pass, int32_t layer);

  Policy& policy_;
};

}  // namespace sluice
