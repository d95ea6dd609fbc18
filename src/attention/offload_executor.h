// OffloadExecutor: attention over KV that lives on the host and is loaded through the ring.
//
// Part of OffloadedKv (kv_offload "chunked" and "layerwise"). Per layer: the history of every
// sequence, slot by slot, then the blocks that the pass has written (stage or tails), with the
// softmax state carried from run to run. A prefill policy that scores keys sees the keys of the
// sequence's history before, slot by slot too, once for each of its windows. Loads are enqueued as
// soon as a slot is free, so they run ahead of compute by up to the number of slots, across blocks
// and layers, and into the pass that is expected next, so that the link is used while the host
// commits one step and schedules another. In decode with a policy that makes lists, nothing can be
// loaded before the layer's selection; then only the listed pages are gathered, or those that are
// not among the hot pages are fetched. If all sealed
// blocks of a decode pass are resident, nothing is transferred: it is one run over the blocks in
// place, as with resident KV. The work of these two kinds of decode pass depends only on the number
// of sequences and the longest context, so it can be captured and replayed. Thread rule: the
// engine's thread.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "attention/executor.h"
#include "attention/offloaded_pass.h"
#include "kv/offload_engine.h"
#include "ops/attention/softmax_state.h"

namespace sluice {

class OffloadExecutor final : public Executor {
 public:
  // Rows whose state is carried: of passes that have history, and, if attention walks zones of keys
  // one after the other, of any pass with zones.
  struct CarriedRows {
    int64_t max_rows = 0;
    bool has_zones = false;
    int64_t chunk_tokens = 0;  // as Executor
  };

  // Allocates the carried state. REQUIRES: policies and offload outlive the executor.
  OffloadExecutor(PolicyPair& policies, OffloadEngine& offload, CarriedRows rows,
                  int64_t num_q_heads, Device& device);

  // Whether passes of the phase gather listed pages instead of loading runs of history. (A pass in
  // place does neither.)
  bool gathers(PassKind kind) const;

  // As in Residency. REQUIRES: neither argument changes before end_pass.
  void begin_pass(const AttentionPass& pass, const OffloadedPass& kv);
  void end_pass();

  // Called after end_pass: begins early loads of the history that the next pass probably has.
  // `spans`: one for each sequence, of no rows in decode.
  void expect_next(std::vector<HistoryRun> history, std::span<const PrefillSpan> spans);

  // Order: before the host tier gets bytes that no pass has written. A pass recognises early loads
  // by their block ids, and the blocks may be other sequences' by then.
  void drop_early_loads();

  // False if decode loads whole histories: slots and waits then differ from pass to pass.
  bool capturable(PassKind kind, bool is_in_place) const {
    return (is_in_place || gathers(kind)) && policies().capturable();
  }
  KvBlocksView write_target(const AttentionPass& pass, LayerId layer) override;

 private:
  // One slot of listed pages of one sequence: entries [begin_pos, end_pos) / page_tokens of its
  // lists, as far as they exist. kv_begin is begin_pos on the device. Lists are sorted and unique,
  // so entry e is page e or a later one, and its position is at least e * page_tokens.
  struct Gather {
    int32_t seq_index = 0;
    int64_t begin_pos = 0;
    int64_t end_pos = 0;
    TensorView kv_begin;
  };

  // A run of history that is loaded, in order of use: for its keys' scores, or for attention.
  struct PlannedLoad {
    LayerId layer;
    size_t run = 0;  // in the history
    BlockPart part = BlockPart::kAll;
    bool operator==(const PlannedLoad&) const = default;
  };
  // A load or gather that is enqueued and not used yet. Of a gather `load` stays empty.
  struct Loading {
    SlotLease lease;
    PlannedLoad load;
  };

  // How a pass reads its history: in runs, loaded into slots or resident; as listed pages gathered
  // into slots; or in place, together with its own tokens.
  enum class HistorySource { kRuns, kGathers, kInPlace };

  KvBlocksView written(const AttentionPass& pass, LayerId layer) const override;
  void for_each_key_run(Stream& stream, const AttentionPass& pass, const PassPart& part,
                        const KeyWalk& walk, const VisitKeys& visit) override;
  bool needs_lists() const override { return source_ == HistorySource::kGathers; }
  void walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
            const LayerInput& input, const Selection& selection) override;
  void end_layer(const AttentionPass& pass, LayerId layer) override;

  HistorySource source_of(const AttentionPass& pass) const;
  bool is_needed(const HistoryBlocks& blocks) const;
  void plan_loads(const std::vector<HistoryRun>& history, std::span<const PrefillSpan> spans,
                  size_t max_loads);
  void plan_gathers(const AttentionPass& pass);
  void attend_run(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                  const Selection& selection, size_t index);
  void attend_gathered(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                       const PageList& pages);
  void attend_copies(Stream& stream, const LayerInput& input, const AttentionBatch& batch,
                     const KeyRun& run, const GatheredPages& pages);
  void attend_in_place(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                       const Selection& selection);
  void attend_own(Stream& stream, const AttentionPass& pass, const PassPart& part,
                  const LayerInput& input, const Selection& selection, bool first);
  void attend_hot(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                  const PageList& pages);
  void gather_ahead(const AttentionPass& pass, LayerId layer, const PageList& pages);
  PageList list_of(const Gather& gather, const PageList& pages) const;
  void send_staged(LayerId layer);
  void load_ahead();
  void adopt_early_loads();
  SlotLease take_lease(const PlannedLoad& load);
  bool copies_columns(int32_t walk) const;
  void visit_in_host(const PassPart& part, const KeyWalk& walk, const HistoryRun& run,
                     const VisitKeys& visit);
  void visit_run(Stream& stream, const KeyWalk& walk, size_t index, const VisitKeys& visit);
  AttentionState state_of(const LayerInput& input) const;

  OffloadEngine& offload_;
  SoftmaxState state_;
  bool zones_have_state_;
  const OffloadedPass* kv_ = nullptr;  // of the pass between begin_pass and end_pass

  std::vector<size_t> runs_;        // of kv_->history: those that each layer attends to
  std::vector<PlannedLoad> loads_;  // of all layers of the pass, in order of use
  size_t next_load_ = 0;            // the first of loads_ that is not enqueued
  HistorySource source_ = HistorySource::kRuns;  // from begin_pass to end_pass
  std::vector<Gather> gathers_;                  // of each layer; empty unless the pass gathers
  int32_t num_hot_seqs_ = 0;                     // the first ones read hot pages, not gathers
  size_t next_gather_ = 0;                       // of the current layer
  std::deque<Loading> loading_;                  // in order of use

  std::vector<HistoryRun> expected_;  // history of the expected pass
  std::deque<Loading> early_;         // loads for it, in the order in which it would use them
  std::vector<StagedBlock> leaving_;  // scratch of send_staged, kept for its capacity
};

}  // namespace sluice
