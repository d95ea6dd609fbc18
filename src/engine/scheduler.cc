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
    if (rows_left == 0) return;
    if (!sequence->kv.prefill_done()) schedule_span(batch, *sequence, rows_left);
  }
}

void Scheduler::admit_waiting(Batch& batch, int64_t& rows_left) {
  while (!waiting_.empty() && rows_left > 0 &&
         static_cast<int32_t>(running_.size()) < limits_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    const int64_t num_cached = blocks_.match_prefix(sequence.tokens).num_tokens;
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

void Scheduler::schedule_span(Batch& batch, Sequence& sequence, int64_t& rows_left) {
  const int64_t pending = sequence.num_pending();
  const int64_t num_rows = std::min({pending, limits_.prefill_chunk_tokens, rows_left});
  rows_left -= num_rows;
  batch.sequences.push_back(
      {.sequence = &sequence, .num_rows = num_rows, .wants_token = num_rows == pending});
}

void Scheduler::schedule_decode(Batch& batch) {
  batch.phase = Phase::kDecode;
  // Oldest first, so that whoever is preempted is newer than everyone scheduled so far.
  for (size_t i = 0; i < running_.size(); ++i) {
    while (i < running_.size() && !blocks_.try_reserve(running_[i]->kv, 1)) preempt_newest();
    if (i < running_.size()) {
      batch.sequences.push_back(
          {.sequence = running_[i].get(), .num_rows = 1, .wants_token = true});
    }
  }
}

void Scheduler::preempt_newest() {
  SLUICE_CHECK(!running_.empty());
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  blocks_.release(sequence->kv);
  waiting_.push_front(std::move(sequence));
  ++num_preemptions_;
}

std::unique_ptr<Sequence> Scheduler::remove(SequenceId id) {
  const auto is_it = [id](const auto& sequence) { return sequence->id == id; };
  std::unique_ptr<Sequence> found;
  if (auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    found = std::move(*it);
    running_.erase(it);
    blocks_.release(found->kv);
  } else if (auto w = std::find_if(waiting_.begin(), waiting_.end(), is_it); w != waiting_.end()) {
    found = std::move(*w);
    waiting_.erase(w);
  }
  return found;
}

std::vector<SequenceId> Scheduler::ids() const {
  std::vector<SequenceId> result;
  for (const auto& sequence : running_) result.push_back(sequence->id);
  for (const auto& sequence : waiting_) result.push_back(sequence->id);
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace sluice
