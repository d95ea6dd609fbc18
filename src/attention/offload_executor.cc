// History through the ring, own tokens where they lie.
#include "attention/offload_executor.h"

#include "core/arena.h"

namespace sluice {
namespace {

AttentionState cut_state(Arena& arena, int64_t max_rows, int64_t num_q_heads, int64_t head_dim) {
  return {.acc = arena.tensor(DType::kF32, {max_rows, num_q_heads, head_dim}),
          .max = arena.tensor(DType::kF32, {max_rows, num_q_heads}),
          .sum = arena.tensor(DType::kF32, {max_rows, num_q_heads})};
}

}  // namespace

size_t OffloadExecutor::state_bytes(int64_t max_rows, int64_t num_q_heads, int64_t head_dim) {
  Arena plan;
  cut_state(plan, max_rows, num_q_heads, head_dim);
  return plan.used_bytes();
}

OffloadExecutor::OffloadExecutor(Policy& policy, OffloadEngine& offload, int64_t max_rows,
                                 int64_t num_q_heads, Device& device)
    : Executor(policy),
      offload_(offload),
      state_memory_(
          device.allocate(state_bytes(max_rows, num_q_heads, offload.layout().block.head_dim),
                          MemoryKind::kDevice)) {
  Arena arena(state_memory_.data(), state_memory_.size_bytes());
  state_ = cut_state(arena, max_rows, num_q_heads, offload.layout().block.head_dim);
}

void OffloadExecutor::begin_pass(const AttentionPass& pass) {
  loading_.clear();  // leases of a pass that failed half-way
  next_load_ = 0;
  adopt_early_loads(pass);
  load_ahead(pass);
}

void OffloadExecutor::expect_next(std::vector<std::vector<BlockId>> history) {
  expected_ = std::move(history);
  for (int32_t layer = 0; layer < offload_.layout().num_layers; ++layer) {
    for (size_t i = 0; i < expected_.size() && offload_.can_load(); ++i) {
      early_.push_back({offload_.load_early(layer, expected_[i]), layer, i});
    }
  }
}

// Takes over the early loads that are the first of this pass; what differs is dropped, and so is
// all that follows, since slots are used in order.
void OffloadExecutor::adopt_early_loads(const AttentionPass& pass) {
  const size_t per_layer = pass.history.size();
  bool as_expected = per_layer > 0;
  for (EarlyLoad& early : early_) {
    const std::vector<BlockId>& blocks = expected_[early.index];
    as_expected = as_expected && early.layer == static_cast<int32_t>(next_load_ / per_layer) &&
                  pass.history[next_load_ % per_layer].blocks == blocks;
    if (as_expected) {
      offload_.adopt(early.layer, blocks);
      loading_.push_back(std::move(early.lease));
      ++next_load_;
    } else {
      offload_.drop(std::move(early.lease), early.layer, blocks);
    }
  }
  early_.clear();
}

KvBlocksView OffloadExecutor::write_target(const AttentionPass& pass, int32_t layer) {
  return pass.phase == Phase::kPrefill ? offload_.begin_stage(layer) : offload_.tails(layer);
}

// Fills every free slot with the next loads of the pass, whichever layer they belong to.
void OffloadExecutor::load_ahead(const AttentionPass& pass) {
  const size_t per_layer = pass.history.size();
  const size_t total = per_layer * static_cast<size_t>(offload_.layout().num_layers);
  while (next_load_ < total && offload_.can_load()) {
    const auto layer = static_cast<int32_t>(next_load_ / per_layer);
    loading_.push_back(offload_.load(layer, pass.history[next_load_ % per_layer].blocks));
    ++next_load_;
  }
}

void OffloadExecutor::walk(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                           const Selection& selection) {
  SLUICE_CHECK(!selection.pages.page_ids.present(), "page lists over the ring");
  for (const HistoryLoad& load : pass.history) attend_history(stream, pass, input, load);
  attend_own(stream, pass, input);
  if (pass.phase == Phase::kPrefill) send_staged(pass, input.layer);
}

AttentionState OffloadExecutor::state_of(const AttentionPass& pass, const LayerInput& input) const {
  if (pass.history.empty()) return {};
  const int64_t rows = input.q.dim(0);
  return {.acc = state_.acc.rows(0, rows),
          .max = state_.max.rows(0, rows),
          .sum = state_.sum.rows(0, rows)};
}

void OffloadExecutor::attend_history(Stream& stream, const AttentionPass& pass,
                                     const LayerInput& input, const HistoryLoad& load) {
  SLUICE_CHECK(!loading_.empty());
  SlotLease lease = std::move(loading_.front());
  loading_.pop_front();
  AttentionBatch batch = pass.batch;
  batch.row_begin = pass.batch.row_begin.rows(load.seq_index, 2);
  batch.first_pos = pass.batch.first_pos.rows(load.seq_index, 1);
  attention(stream, {.q = input.q,
                     .out = input.out,
                     .scale = input.scale,
                     .batch = batch,
                     .kv = lease.use(stream),
                     .kv_begin = load.kv_begin,
                     .kv_end = load.kv_end,
                     .block_table = pass.slot_table,
                     .state = state_of(pass, input),
                     .first = false,
                     .last = false});
  lease.release();
  load_ahead(pass);
}

void OffloadExecutor::attend_own(Stream& stream, const AttentionPass& pass,
                                 const LayerInput& input) {
  const bool is_prefill = pass.phase == Phase::kPrefill;
  attention(stream, {.q = input.q,
                     .out = input.out,
                     .scale = input.scale,
                     .batch = pass.batch,
                     .kv = is_prefill ? offload_.stage(input.layer) : offload_.tails(input.layer),
                     .kv_begin = pass.kv_begin,
                     .kv_end = pass.kv_end,
                     .block_table = pass.block_table,
                     .state = state_of(pass, input),
                     .first = pass.history.empty(),
                     .last = true});
}

void OffloadExecutor::send_staged(const AttentionPass& pass, int32_t layer) {
  leaving_.clear();
  for (const StagedOutcome& outcome : pass.staged) {
    if (outcome.tail_index >= 0) {
      offload_.move_to_tail(layer, outcome.stage_index, outcome.tail_index);
    } else {
      leaving_.push_back({.stage_index = outcome.stage_index, .host_id = outcome.host_id});
    }
  }
  offload_.write_back_stage(layer, leaving_);
}

}  // namespace sluice
