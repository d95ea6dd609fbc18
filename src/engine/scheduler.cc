// Prefill first, then decode; preempt the newest.
#include "engine/scheduler.h"

#include <algorithm>

namespace sluice {

Scheduler::Scheduler(const SchedulerLimits& limits, BlockManager& blocks)
    : limits_(limits), blocks_(blocks) {
  SLUICE_CHECK(limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0 &&
               limits.prefill_chunk_tokens > 0);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

Batch Scheduler::schedule() {
  SLUICE_CHECK(has_unfinished());
  Batch batch{.phase = Phase::kPrefill, .sequences = {}};
  int64_t rows_left = limits_.max_num_batched_tokens;
  continue_prefills(batch, rows_left);
  admit_waiting(batch, rows_left);
  if (batch.sequences.empty()) schedule_decode(batch);
  SLUICE_CHECK(!batch.sequences.empty(), "{} waiting, {} running", waiting_.size(),
               running_.size());
  return batch;
}

// A long prompt takes several steps; its blocks were all reserved when it was admitted, so half a
// prefill never waits for memory that another half holds.
void Scheduler::continue_prefills(Batch& batch, int64_t& rows_left) {
  for (const auto& sequence : running_) {
    if (!sequence->kv.prefill_done()) schedule_span(batch, *sequence, rows_left);
  }
}

void Scheduler::admit_waiting(Batch& batch, int64_t& rows_left) {
  while (!waiting_.empty() && static_cast<int32_t>(running_.size()) < limits_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    const int64_t num_cached = blocks_.match_prefix(sequence.tokens).num_tokens;
    if (span_rows(sequence, num_cached, batch.num_rows(), rows_left) == 0) return;
    if (!blocks_.try_begin(sequence.kv, sequence.tokens, sequence.num_tokens() - num_cached)) {
      return;  // in order of arrival: a small request does not overtake a large one for ever
    }
    sequence.output.num_cached_tokens =
        std::min(sequence.kv.num_cached_tokens(), sequence.num_prompt_tokens);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    schedule_span(batch, sequence, rows_left);
  }
}

// Rows that the sequence, with `num_done` tokens of KV, may have in a pass that has `rows_used`
// already; 0 if it has to wait for the next pass.
int64_t Scheduler::span_rows(const Sequence& sequence, int64_t num_done, int64_t rows_used,
                             int64_t rows_left) const {
  if (num_done > 0 && limits_.max_rows_with_history > 0) {
    rows_left = std::min(rows_left, limits_.max_rows_with_history - rows_used);
  }
  const int64_t pending = sequence.num_tokens() - num_done;
  const int64_t num_rows = std::min({pending, limits_.prefill_chunk_tokens, rows_left});
  if (num_rows <= 0 || num_rows == pending) return std::max<int64_t>(num_rows, 0);
  return num_rows / limits_.span_align_tokens * limits_.span_align_tokens;
}

void Scheduler::schedule_span(Batch& batch, Sequence& sequence, int64_t& rows_left) {
  const int64_t num_done = sequence.kv.num_tokens();
  const int64_t rows_used = batch.num_rows();
  const int64_t num_rows = span_rows(sequence, num_done, rows_used, rows_left);
  if (num_rows == 0) return;
  if (num_done > 0 && limits_.max_rows_with_history > 0) {
    rows_left = std::min(rows_left, limits_.max_rows_with_history - rows_used);
  }
  // Spans do not share a block, so a partial one costs the pass a whole block.
  const int64_t align = limits_.span_align_tokens;
  rows_left -= (num_rows + align - 1) / align * align;
  batch.sequences.push_back({.sequence = &sequence,
                             .num_rows = num_rows,
                             .wants_token = num_rows == sequence.num_pending()});
}

void Scheduler::schedule_decode(Batch& batch) {
  batch.phase = Phase::kDecode;
  // Oldest first, so that a preempted sequence is newer than all scheduled so far.
  for (size_t i = 0; i < running_.size(); ++i) {
    while (i < running_.size() && !blocks_.try_reserve(running_[i]->kv, 1)) preempt_newest();
    if (i < running_.size()) {
      batch.sequences.push_back(
          {.sequence = running_[i].get(), .num_rows = 1, .wants_token = true});
    }
  }
}

std::vector<ExpectedSequence> Scheduler::expect_next(const Batch& batch) const {
  std::vector<ExpectedSequence> prefilling, decoding;
  for (const auto& sequence : running_) {
    const auto is_it = [&](const ScheduledSequence& s) { return s.sequence == sequence.get(); };
    const auto scheduled = std::find_if(batch.sequences.begin(), batch.sequences.end(), is_it);
    const bool runs = scheduled != batch.sequences.end();
    const int64_t num_done = sequence->kv.num_tokens() + (runs ? scheduled->num_rows : 0);
    if (num_done < sequence->kv.prefill_tokens()) {
      prefilling.push_back({&sequence->kv, num_done});
    } else if (!runs || sequence->num_generated() + 1 < sequence->params.max_tokens) {
      // A tail that this decode step fills is sealed when the step is committed.
      const bool is_decode = batch.phase == Phase::kDecode;
      decoding.push_back({&sequence->kv, is_decode ? sequence->kv.num_tokens() : num_done});
    }
  }
  if (!prefilling.empty()) return prefilling;
  // A waiting sequence is admitted as soon as fewer than max_num_seqs run, if memory allows.
  const bool has_room = static_cast<int32_t>(decoding.size()) < limits_.max_num_seqs;
  return waiting_.empty() || !has_room ? decoding : std::vector<ExpectedSequence>{};
}

void Scheduler::preempt_newest() {
  SLUICE_CHECK(!running_.empty());
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  release(*sequence);
  waiting_.push_front(std::move(sequence));
  ++num_preemptions_;
}

void Scheduler::release(Sequence& sequence) {
  if (on_release) on_release(sequence);
  blocks_.release(sequence.kv);
}

std::unique_ptr<Sequence> Scheduler::remove(SequenceId id) {
  const auto is_it = [id](const auto& sequence) { return sequence->id == id; };
  std::unique_ptr<Sequence> found;
  if (auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    found = std::move(*it);
    running_.erase(it);
    release(*found);
  } else if (auto w = std::find_if(waiting_.begin(), waiting_.end(), is_it); w != waiting_.end()) {
    found = std::move(*w);
    waiting_.erase(w);
  }
  return found;
}

Sequence* Scheduler::find_running(SequenceId id) {
  const auto is_it = [id](const auto& sequence) { return sequence->id == id; };
  const auto it = std::find_if(running_.begin(), running_.end(), is_it);
  return it == running_.end() ? nullptr : it->get();
}

}  // namespace sluice
