// OffloadedKv: the Residency with sealed blocks in the host tier. A pass writes its KV to the stage
// (prefill) or to the tails of its sequences (decode).
//
// Made by make_residency for kv_offload "chunked" and "layerwise". It plans and describes passes
// and sends full tails to the host; OffloadExecutor enqueues the attention. Thread rule: the
// engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/make_residency.h"
#include "attention/offload_arrays.h"
#include "attention/offload_executor.h"
#include "attention/offloaded_pass.h"
#include "attention/residency.h"
#include "kv/offload_engine.h"

namespace sluice {

class OffloadedKv final : public Residency {
 public:
  // Allocates all memory. REQUIRES: policies and compute outlive it. `on_progress` reports the
  // bytes of the host tier that are pinned.
  OffloadedKv(PolicyPair& policies, Device& device, Stream& compute, const KvLayout& layout,
              const PassLimits& pass_limits, const OffloadedLimits& limits, int64_t num_q_heads,
              const AllocationProgress& on_progress = nullptr);

  static size_t array_bytes(const PassLimits& pass, const OffloadedLimits& limits);

  Executor& executor() override { return executor_; }
  PassPlan plan_pass(PassKind kind, std::span<const SequenceRows> sequences) override;
  void describe(const PassShape& shape, Arena& host, Arena& device, AttentionPass& pass) override;
  size_t array_bytes() const override { return array_bytes(pass_limits_, limits_); }
  void begin_pass(const AttentionPass& pass) override { executor_.begin_pass(pass, pass_); }
  void end_pass() override { executor_.end_pass(); }
  void prefetch(std::span<const ExpectedRows> expected) override;

  void committed(SequenceId sequence, int64_t num_tokens, BlockId newest_full) override;
  void drop_drafts(SequenceId sequence, int64_t num_tokens) override;
  void release(SequenceId sequence) override { offload_.tails().give_back_from(sequence, 0); }
  void discard(BlockId id) override { offload_.discard(id); }
  void synchronize() override { offload_.synchronize(); }

  std::unique_ptr<BlockPort> make_port() override;

  int64_t flowing_bytes(const KvView& kv) const override;
  void read_counters(TransferCounters& counters) const override;
  bool is_on_device(BlockId id) const override { return offload_.residents().find(id).valid(); }
  int32_t num_slots() const override { return offload_.loader().num_slots(); }
  std::vector<SlotContents> slot_contents() const override {
    return offload_.loader().slot_contents();
  }
  const std::byte* block_bytes(SequenceId sequence, const SequenceBlock& block,
                               LayerId layer) const override;

  const OffloadEngine& offload() const { return offload_; }  // for tests

 private:
  // A sequence of the planned pass and the blocks of stage or tails that its rows are written to.
  struct PlannedRows {
    SequenceRows rows;
    int64_t begin_pos = 0;  // position of the first token of these blocks
    int32_t first = 0;      // StageId of the first, or its place in tails_; the rest follow it
    int32_t num_blocks = 0;
  };

  std::span<const SequenceBlock> sealed_blocks(const KvView& kv, int64_t num_tokens) const;
  bool all_resident(std::span<const SequenceRows> sequences) const;
  void add_history(const KvView& kv, int32_t seq_index);
  std::vector<HistoryBlocks> history_of(PassKind kind, const KvView& kv, int64_t num_tokens) const;
  int32_t variant_of(PassKind kind) const;
  void plan_staged(PlannedRows& planned);
  void plan_tails(PlannedRows& planned);
  int32_t own_block(const PlannedRows& planned, int64_t index) const;

  OffloadArrays::Sizes sizes_of(const PassShape& shape) const;
  void write_sequence(const PlannedRows& planned, int64_t index, int64_t row_begin);
  void write_block_places(const PlannedRows& planned, std::span<int32_t> row) const;
  void write_history();
  void view_arrays(AttentionPass& pass);

  PolicyPair& policies_;
  Stream& compute_;
  KvLayout layout_;
  PassLimits pass_limits_;
  OffloadedLimits limits_;
  OffloadEngine offload_;
  OffloadExecutor executor_;

  // Of the pass of the last plan_pass and describe.
  PassKind kind_;
  OffloadedPass pass_;
  std::vector<PlannedRows> planned_;
  std::vector<TailId> tails_;  // of all planned sequences; empty in prefill
  int32_t num_staged_ = 0;
  OffloadArrays host_;
  OffloadArrays device_;
};

}  // namespace sluice
