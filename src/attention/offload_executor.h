// OffloadExecutor: the walk when KV lives on the host and flows through the ring.
//
// Used by the engine with kv_offload "chunked" and "layerwise". Per layer: the history of every
// sequence, slot by slot, then what the pass itself has written (stage or tails), with the softmax
// state carried from run to run. Loads are enqueued as soon as a slot is free, so they run ahead of
// compute by up to the number of slots, across blocks and across layers, and into the pass that is
// expected next: the link does not idle while the host commits one step and schedules another.
// Thread rule: the engine's thread.
#pragma once

#include <deque>

#include "attention/executor.h"
#include "kv/offload_engine.h"

namespace sluice {

class OffloadExecutor final : public Executor {
 public:
  // Takes the memory of the carried state for passes of up to `max_rows` rows that have history.
  // REQUIRES: policy and offload outlive the executor.
  OffloadExecutor(Policy& policy, OffloadEngine& offload, int64_t max_rows, int64_t num_q_heads,
                  Device& device);

  static size_t state_bytes(int64_t max_rows, int64_t num_q_heads, int64_t head_dim);

  void begin_pass(const AttentionPass& pass) override;
  bool capturable() const override { return false; }  // slots and waits differ from pass to pass
  void expect_next(std::vector<std::vector<BlockId>> history) override;
  KvBlocksView write_target(const AttentionPass& pass, int32_t layer) override;

 private:
  void walk(Stream& stream, const AttentionPass& pass, const LayerInput& input,
            const Selection& selection) override;
  void attend_history(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                      const HistoryLoad& load);
  void attend_own(Stream& stream, const AttentionPass& pass, const LayerInput& input);
  void send_staged(const AttentionPass& pass, int32_t layer);
  void load_ahead(const AttentionPass& pass);
  void adopt_early_loads(const AttentionPass& pass);
  AttentionState state_of(const AttentionPass& pass, const LayerInput& input) const;

  OffloadEngine& offload_;
  Buffer state_memory_;
  AttentionState state_;

  // Loads of the pass in the order of use: all of layer 0, all of layer 1, ...
  size_t next_load_ = 0;
  std::deque<SlotLease> loading_;

  // Loads for the pass that was expected; in the order in which it would use them.
  struct EarlyLoad {
    SlotLease lease;
    int32_t layer = 0;
    size_t index = 0;  // in expected_
  };
  std::vector<std::vector<BlockId>> expected_;
  std::deque<EarlyLoad> early_;
  std::vector<StagedBlock> leaving_;  // scratch of send_staged
};

}  // namespace sluice
