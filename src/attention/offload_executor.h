// OffloadExecutor: the walk when KV lives on the host and flows through the ring.
//
// Used by the engine with kv_offload "chunked" and "layerwise". Per layer: the history of every
// sequence, slot by slot, then what the pass itself has written (stage or tails), with the softmax
// state carried from run to run. Loads are enqueued as soon as a slot is free, so they run ahead of
// compute by up to the number of slots, across blocks and across layers, and into the pass that is
// expected next: the link does not idle while the host commits one step and schedules another.
// In decode with a policy that makes lists nothing can be loaded before the layer's queries have
// chosen; the listed pages are then gathered, and they alone. Where all sealed blocks of a decode
// pass are resident nothing moves at all: it is one run over blocks in place, as with KV that is
// not offloaded. What these two enqueue follows from the number of sequences and the longest
// context, so they can be recorded and replayed. Thread rule: the engine's thread.
#pragma once

#include <deque>

#include "attention/executor.h"
#include "attention/offloaded_pass.h"
#include "kv/offload_engine.h"

namespace sluice {

class OffloadExecutor final : public Executor {
 public:
  // Takes the memory of the carried state for passes of up to `max_rows` rows that have history.
  // REQUIRES: policies and offload outlive the executor.
  OffloadExecutor(PolicyPair& policies, OffloadEngine& offload, int64_t max_rows,
                  int64_t num_q_heads, Device& device);

  static size_t state_bytes(int64_t max_rows, int64_t num_q_heads, int64_t head_dim);

  // Whether such a pass fetches listed pages instead of walking runs of history, unless all of it
  // is in place.
  bool gathers(Phase phase) const;

  // As those of Residency. REQUIRES: both passes stay as they are in between.
  void begin_pass(const AttentionPass& pass, const OffloadedPass& kv);
  void end_pass();

  // Called after end_pass, with the history that the next one will probably have.
  void expect_next(std::vector<HistoryBlocks> history);

  // Not where decode streams whole histories: slots and waits then differ from pass to pass.
  bool capturable(bool is_in_place) const {
    return (is_in_place || gathers(Phase::kDecode)) && policies().capturable();
  }
  KvBlocksView write_target(const AttentionPass& pass, LayerId layer) override;

 private:
  // A slotful of listed pages of one sequence: those of entries [begin_pos, end_pos) / page_tokens
  // of its lists that exist. kv_begin is begin_pos on the device: entry e is page e or a later one.
  struct Gather {
    int32_t seq_index = 0;
    int64_t begin_pos = 0;
    int64_t end_pos = 0;
    TensorView kv_begin;
  };

  // Where a pass finds its history: slot by slot and in resident runs; in slots into which listed
  // pages are gathered; or all of it, and its own tokens, where it is.
  enum class HistorySource { kRuns, kGathers, kInPlace };

  KvBlocksView written(const AttentionPass& pass, LayerId layer) const override;
  bool needs_lists() const override { return source_ == HistorySource::kGathers; }
  void walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
            const LayerInput& input, const Selection& selection) override;
  void end_layer(const AttentionPass& pass, LayerId layer) override;

  HistorySource source_of(const AttentionPass& pass) const;
  bool is_needed(const HistoryBlocks& blocks) const;
  void plan_loads();
  void plan_gathers(const AttentionPass& pass);
  void attend_run(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                  const Selection& selection, size_t index);
  void attend_gathered(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                       const PageList& pages);
  void attend_in_place(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                       const Selection& selection);
  void attend_own(Stream& stream, const AttentionPass& pass, const PassPart& part,
                  const LayerInput& input, const Selection& selection, bool first);
  void gather_ahead(const AttentionPass& pass, LayerId layer, const PageList& pages);
  PageList list_of(const Gather& gather, const PageList& pages) const;
  void send_staged(LayerId layer);
  void load_ahead();
  void adopt_early_loads();
  SlotLease take_lease();
  AttentionState state_of(const LayerInput& input) const;

  OffloadEngine& offload_;
  Buffer state_memory_;
  AttentionState state_;
  const OffloadedPass* kv_ = nullptr;  // of the pass between begin_pass and end_pass

  // What every layer of the pass walks, as indices of kv_->history, and what of it is loaded: in
  // the order of use, all of layer 0, all of layer 1, ... Or else what it gathers.
  std::vector<size_t> runs_;
  std::vector<size_t> loads_;
  size_t next_load_ = 0;
  HistorySource source_ = HistorySource::kRuns;  // from begin_pass to end_pass
  std::vector<Gather> gathers_;                  // of each layer of the pass
  size_t next_gather_ = 0;                       // of the layer
  std::deque<SlotLease> loading_;

  // Loads for the pass that was expected; in the order in which it would use them.
  struct EarlyLoad {
    SlotLease lease;
    LayerId layer;
    size_t index = 0;  // in expected_
  };
  std::vector<HistoryBlocks> expected_;
  std::deque<EarlyLoad> early_;
  std::vector<StagedBlock> leaving_;  // scratch of send_staged
};

}  // namespace sluice
