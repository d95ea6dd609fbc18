// Loads ahead of compute, and the attention over runs, gathered pages and own blocks.
#include "attention/offload_executor.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sluice {
namespace {

// The rows of one sequence of a pass.
AttentionBatch batch_of(const AttentionPass& pass, int32_t seq_index) {
  AttentionBatch batch = pass.batch;
  batch.row_begin = pass.batch.row_begin.rows(seq_index, 2);
  batch.first_pos = pass.batch.first_pos.rows(seq_index, 1);
  return batch;
}

}  // namespace

OffloadExecutor::OffloadExecutor(PolicyPair& policies, OffloadEngine& offload, CarriedRows rows,
                                 int64_t num_q_heads, Device& device)
    : Executor(policies, offload.layout(), rows.chunk_tokens),
      offload_(offload),
      state_(device, rows.max_rows, num_q_heads, offload.layout().block.head_dim),
      zones_have_state_(rows.has_zones) {}

// ---- Loads and gathers of a pass -------------------------------------------------------------

// A prefill loads its whole history, since the lists of its many rows together name most pages.
bool OffloadExecutor::gathers(PassKind kind) const {
  return !kind.is_prefill && !kind.is_verify && rule(kind).makes_page_lists();
}

OffloadExecutor::HistorySource OffloadExecutor::source_of(const AttentionPass& pass) const {
  if (kv_->is_in_place) return HistorySource::kInPlace;
  return gathers(pass.kind) ? HistorySource::kGathers : HistorySource::kRuns;
}

// Whether a run must be attended to: false for passes that gather, and for a run that no row's list
// can name (the middle of the context with "streaming").
bool OffloadExecutor::is_needed(const HistoryBlocks& blocks) const {
  const HistoryRange& range = blocks.range;
  return !gathers(range.kind) &&
         rule(range.kind).may_select(range.first_row_pos, range.begin_pos, range.end_pos);
}

void OffloadExecutor::begin_pass(const AttentionPass& pass, const OffloadedPass& kv) {
  kv_ = &kv;
  source_ = source_of(pass);
  runs_.clear();
  for (size_t i = 0; i < kv_->history.size(); ++i) {
    if (is_needed(kv_->history[i])) runs_.push_back(i);
  }
  plan_loads(kv_->history, selects(pass) ? pass.spans : std::span<const PrefillSpan>{},
             std::numeric_limits<size_t>::max());
  plan_gathers(pass);
  adopt_early_loads();
  if (source_ == HistorySource::kGathers) {
    offload_.loader().begin_gather_pass(kv_->gathered);
    if (num_hot_seqs_ > 0) offload_.hot_pages()->begin_pass(kv_->gathered);
  } else {
    load_ahead();
  }
}

void OffloadExecutor::end_pass() {
  loading_.clear();  // leases left by a pass that failed
  if (std::exchange(source_, HistorySource::kRuns) != HistorySource::kGathers) return;
  offload_.loader().end_gather_pass(std::ssize(gathers_) * offload_.layout().num_layers);
}

// Whether a walk of the prefill policy reads single tokens, so that it loads nothing.
bool OffloadExecutor::copies_columns(int32_t walk) const {
  const TileScorer* scorer = policies().prefill().tile_scorer();
  return scorer != nullptr && scorer->copies_columns(walk);
}

// Writes the loads of a pass over `history` to loads_, in the order in which its layers use them,
// but at most `max_loads`: of each sequence first the runs of all walks of its span's windows, and
// then the runs that are attended to. Resident runs need no load. Without spans nothing is scored.
void OffloadExecutor::plan_loads(const std::vector<HistoryRun>& history,
                                 std::span<const PrefillSpan> spans, size_t max_loads) {
  loads_.clear();
  next_load_ = 0;
  for (const LayerId layer : offload_.layout().layers()) {
    for (size_t first = 0, end = 0; first < history.size(); first = end) {
      const auto seq = static_cast<size_t>(history[first].seq_index);
      while (end < history.size() && history[end].seq_index == history[first].seq_index) ++end;
      const auto add = [&](BlockPart part, bool only_needed) {
        for (size_t i = first; i < end && loads_.size() < max_loads; ++i) {
          if (history[i].is_resident() || (only_needed && !is_needed(history[i]))) continue;
          loads_.push_back({layer, i, part});
        }
      };
      const KeyVisits visits = spans.empty() ? KeyVisits{} : key_visits(layer, spans[seq]);
      for (int64_t window = 0; window < visits.num_windows; ++window) {
        for (int32_t walk = visits.first_walk; walk < visits.num_walks; ++walk) {
          if (!copies_columns(walk)) add(BlockPart::kKeys, false);
        }
      }
      add(BlockPart::kAll, true);
    }
    if (loads_.size() >= max_loads) return;
  }
}

void OffloadExecutor::expect_next(std::vector<HistoryRun> history,
                                  std::span<const PrefillSpan> spans) {
  expected_ = std::move(history);
  HostLoader& loader = offload_.loader();
  plan_loads(expected_, spans, static_cast<size_t>(loader.num_slots()));
  for (const PlannedLoad& load : loads_) {
    if (!loader.can_load()) return;
    early_.push_back({loader.load_early(load.layer, expected_[load.run].blocks, load.part), load});
  }
}

// Takes over the early loads that equal the first loads of this pass. From the first difference on
// they are dropped, since slots are used in order.
void OffloadExecutor::adopt_early_loads() {
  while (!early_.empty() && next_load_ < loads_.size()) {
    auto& [lease, early] = early_.front();
    const PlannedLoad& load = loads_[next_load_];
    const std::vector<BlockId>& blocks = expected_[early.run].blocks;
    if (early.layer != load.layer || early.part != load.part) break;
    if (blocks != kv_->history[load.run].blocks) break;
    offload_.loader().adopt(early.layer, blocks, early.part);
    loading_.push_back({std::move(lease), load});
    early_.pop_front();
    ++next_load_;
  }
  drop_early_loads();
}

void OffloadExecutor::drop_early_loads() {
  for (auto& [lease, early] : early_) {
    offload_.loader().drop(std::move(lease), early.layer, expected_[early.run].blocks, early.part);
  }
  early_.clear();
}

// Fills every free slot with the next loads of the pass, whichever layer they belong to.
void OffloadExecutor::load_ahead() {
  while (next_load_ < loads_.size() && offload_.loader().can_load()) {
    const PlannedLoad& load = loads_[next_load_++];
    const std::vector<BlockId>& blocks = kv_->history[load.run].blocks;
    loading_.push_back({offload_.loader().load(load.layer, blocks, load.part), load});
  }
}

// The oldest load: leases are used in the order in which they were enqueued. `load` is what the
// caller will read.
SlotLease OffloadExecutor::take_lease(const PlannedLoad& load) {
  SLUICE_CHECK(!loading_.empty() && loading_.front().load == load, "layer {}, run {}",
               load.layer.value, load.run);
  SlotLease lease = std::move(loading_.front().lease);
  loading_.pop_front();
  return lease;
}

// ---- Attention -------------------------------------------------------------------------------

KvBlocksView OffloadExecutor::write_target(const AttentionPass& pass, LayerId layer) {
  return pass.kind.is_prefill ? offload_.begin_stage(layer) : offload_.places().tails(layer);
}

KvBlocksView OffloadExecutor::written(const AttentionPass& pass, LayerId layer) const {
  return pass.kind.is_prefill ? offload_.stage(layer) : offload_.places().tails(layer);
}

// The sequence's history, from slots or resident places, then the keys that the pass has written.
void OffloadExecutor::for_each_key_run(Stream& stream, const AttentionPass& pass,
                                       const PassPart& part, const KeyWalk& walk,
                                       const VisitKeys& visit) {
  for (size_t i = 0; i < kv_->history.size(); ++i) {
    if (kv_->history[i].seq_index != part.first_seq) continue;
    if (copies_columns(walk.index) && !kv_->history[i].is_resident()) {
      visit_in_host(part, walk, kv_->history[i], visit);
    } else {
      visit_run(stream, walk, i, visit);
    }
  }
  visit({.kv = written(pass, walk.layer),
         .kv_begin = part.kv_begin,
         .kv_end = part.kv_end,
         .block_table = part.block_table,
         .end_pos = pass.spans[static_cast<size_t>(part.first_seq)].end_pos()});
}

// Shows one run of history where it is on the host.
void OffloadExecutor::visit_in_host(const PassPart& part, const KeyWalk& walk,
                                    const HistoryRun& run, const VisitKeys& visit) {
  const int64_t first = run.range.begin_pos / offload_.layout().block.block_tokens;
  const TensorView ids = part.block_ids.reshape({part.block_ids.dim(1)});
  visit(
      {.kv = offload_.loader().read_in_place(walk.layer, run.blocks),
       .kv_begin = run.kv_begin,
       .kv_end = run.kv_end,
       .block_table = ids.rows(first, std::ssize(run.blocks)).reshape({1, std::ssize(run.blocks)}),
       .end_pos = run.range.end_pos});
}

// Shows the keys of one run of history and gives its slot to the next load.
void OffloadExecutor::visit_run(Stream& stream, const KeyWalk& walk, size_t index,
                                const VisitKeys& visit) {
  const HistoryRun& run = kv_->history[index];
  SlotLease lease;
  if (!run.is_resident()) lease = take_lease({walk.layer, index, BlockPart::kKeys});
  visit({.kv = lease.held() ? lease.use(stream) : offload_.places().residents(walk.layer),
         .kv_begin = run.kv_begin,
         .kv_end = run.kv_end,
         .block_table = run.block_table,
         .end_pos = run.range.end_pos});
  if (!lease.held()) return;
  lease.release();
  load_ahead();
}

// The history first, then the own blocks: tiles must be visited in ascending order of position.
void OffloadExecutor::walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
                           const LayerInput& input, const Selection& selection) {
  if (source_ == HistorySource::kInPlace) return attend_in_place(stream, pass, input, selection);
  bool first = true;
  if (source_ == HistorySource::kGathers) {
    const PageList* pages = listed_in(selection);
    SLUICE_CHECK(pages != nullptr, "{} made no lists", policies().name());
    attend_gathered(stream, pass, input, *pages);
    first = false;
  } else {
    for (size_t i = 0; i < runs_.size(); ++i) {
      const int64_t seq = kv_->history[runs_[i]].seq_index - part.first_seq;
      if (seq < 0 || seq >= part.num_seqs) continue;
      attend_run(stream, pass, input, selection, i);
      first = false;
    }
  }
  attend_own(stream, pass, part, input, selection, first);
}

// The carried state of this pass's rows; absent if the own blocks are the only run and are walked
// at once.
AttentionState OffloadExecutor::state_of(const LayerInput& input) const {
  const bool is_one_run = kv_->history.empty() && source_ == HistorySource::kRuns;
  if (is_one_run && !(input.zones.present() && zones_have_state_)) return {};
  return state_.rows(input.q.dim(0));
}

// Attends to one run, in its slot or in its resident places, and gives the slot to the next load.
void OffloadExecutor::attend_run(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                                 const Selection& selection, size_t index) {
  const HistoryRun& run = kv_->history[runs_[index]];
  // By sequence and not by position: runs that no list can name are left out, perhaps the first.
  const bool first = index == 0 || kv_->history[runs_[index - 1]].seq_index != run.seq_index;
  SlotLease lease;
  if (!run.is_resident()) lease = take_lease({input.layer, runs_[index], BlockPart::kAll});
  AttentionArgs args =
      args_of(input, batch_of(pass, run.seq_index),
              {.kv = lease.held() ? lease.use(stream) : offload_.places().residents(input.layer),
               .kv_begin = run.kv_begin,
               .kv_end = run.kv_end,
               .block_table = run.block_table},
              selection);
  args.state = state_of(input);
  args.first = first;
  args.last = false;
  attend_keys(stream, args);
  if (!lease.held()) return;
  lease.release();
  load_ahead();
}

// Attends to all gathers of a layer, slot by slot; a freed slot takes the next gather.
void OffloadExecutor::attend_gathered(Stream& stream, const AttentionPass& pass,
                                      const LayerInput& input, const PageList& pages) {
  next_gather_ = 0;
  offload_.loader().begin_gathers();
  gather_ahead(pass, input.layer, pages);
  if (num_hot_seqs_ > 0) attend_hot(stream, pass, input, pages);
  for (const Gather& gather : gathers_) {
    SlotLease lease = take_lease(PlannedLoad{});
    attend_copies(stream, input, batch_of(pass, gather.seq_index),
                  {.kv = as_pages(lease.use(stream), pages.page_tokens),
                   .kv_begin = gather.kv_begin,
                   .kv_end = pass.kv_begin.rows(gather.seq_index, 1),
                   .block_table = {}},
                  {.list = list_of(gather, pages),
                   .places = {},
                   .source_block_tokens = offload_.layout().block.block_tokens});
    lease.release();
    gather_ahead(pass, input.layer, pages);
  }
}

// Neither the first run, since every list's first copies are at token 0, nor the last.
void OffloadExecutor::attend_copies(Stream& stream, const LayerInput& input,
                                    const AttentionBatch& batch, const KeyRun& run,
                                    const GatheredPages& pages) {
  AttentionArgs args = args_of(input, batch, run, pages);
  args.state = state_of(input);
  args.first = false;
  args.last = false;
  attention(stream, args);
}

// One run over all sequences, as with a pool. Blocks cannot lose their places before they are read,
// since places are overwritten by copies on compute.
void OffloadExecutor::attend_in_place(Stream& stream, const AttentionPass& pass,
                                      const LayerInput& input, const Selection& selection) {
  AttentionArgs args = args_of(input, pass.batch,
                               {.kv = offload_.places().all(input.layer),
                                .kv_begin = kv_->history_begin,
                                .kv_end = pass.kv_end,
                                .block_table = kv_->block_places},
                               selection);
  if (input.zones.present() && zones_have_state_) args.state = state_of(input);
  attention(stream, args);
}

// The last run: the blocks that the pass itself has written.
void OffloadExecutor::attend_own(Stream& stream, const AttentionPass& pass, const PassPart& part,
                                 const LayerInput& input, const Selection& selection, bool first) {
  AttentionArgs args = args_of(input, part.batch,
                               {.kv = written(pass, input.layer),
                                .kv_begin = part.kv_begin,
                                .kv_end = part.kv_end,
                                .block_table = part.block_table},
                               selection);
  args.state = state_of(input);
  args.first = first;
  attend_keys(stream, args);
}

void OffloadExecutor::end_layer(const AttentionPass& pass, LayerId layer) {
  if (pass.kind.is_prefill) send_staged(layer);
  const bool is_last = layer.value + 1 == offload_.layout().num_layers;
  if (!is_last || source_ != HistorySource::kGathers) return;
  offload_.loader().fetch_gather_counts();
  if (num_hot_seqs_ > 0) offload_.hot_pages()->fetch_counts();
}

// Moves a layer's staged blocks on: full ones to the host, a partial one to the sequence's tail.
void OffloadExecutor::send_staged(LayerId layer) {
  leaving_.clear();
  for (const StagedOutcome& outcome : kv_->staged) {
    if (outcome.tail.valid()) {
      offload_.move_to_tail(layer, outcome.stage_id, outcome.tail);
    } else {
      leaving_.push_back({.stage_id = outcome.stage_id,
                          .host_id = outcome.host_id,
                          .begins_sequence = outcome.begins_sequence});
    }
  }
  offload_.write_back_stage(layer, leaving_);
}

}  // namespace sluice
