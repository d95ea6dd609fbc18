// Prefill before decode, in order of arrival; preemption takes the newest.
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
  int64_t rows_left = limits_.max_num_batched_tokens;  // of this pass
  continue_prefills(batch, rows_left);
  admit_waiting(batch, rows_left);
  if (batch.sequences.empty()) schedule_decode(batch);
  // The pool holds at least one longest request, so some sequence can always run.
  SLUICE_CHECK(!batch.sequences.empty(), "{} waiting, {} running", waiting_.size(),
               running_.size());
  return batch;
}

// Adds the next span of every sequence whose prefill has begun. Their blocks were all reserved at
// admission, so two half-done prefills can never wait for each other's memory.
void Scheduler::continue_prefills(Batch& batch, int64_t& rows_left) {
  for (const auto& sequence : running_) {
    if (!sequence->kv.prefill_done()) schedule_span(batch, *sequence, rows_left);
  }
}

// Admits waiting sequences in order of arrival while rows, blocks and max_num_seqs allow. Blocks of
// a cached prefix are taken instead of computed.
void Scheduler::admit_waiting(Batch& batch, int64_t& rows_left) {
  while (!waiting_.empty() && static_cast<int32_t>(running_.size()) < limits_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    // Tokens that need a score have to be computed.
    const int64_t max_hit = sequence.needs_scores() ? 0 : kAnyHit;
    const int64_t num_cached = blocks_.match_prefix(sequence.tokens, max_hit).num_tokens;
    if (span_rows(sequence, num_cached, batch.num_rows(), rows_left) == 0) return;
    if (!blocks_.try_begin(sequence.kv, sequence.tokens, sequence.num_tokens() - num_cached,
                           max_hit)) {
      return;  // no overtaking: small requests could delay a large one without end
    }
    // After preemption the cached prefix may include generated tokens; only the prompt's count.
    sequence.output.num_cached_tokens =
        std::min(sequence.kv.num_cached_tokens(), sequence.num_prompt_tokens);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    schedule_span(batch, sequence, rows_left);
  }
}

// Rows of the sequence's next span in a pass that already has `rows_used` rows, if `num_done`
// tokens have KV; 0 if it must wait for the next pass. A span that ends before the sequence's last
// token is cut to a multiple of span_align_tokens.
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

// Adds the sequence's next span to the batch and subtracts its rows from `rows_left`.
void Scheduler::schedule_span(Batch& batch, Sequence& sequence, int64_t& rows_left) {
  const int64_t num_done = sequence.kv.num_tokens();
  const int64_t rows_used = batch.num_rows();
  const int64_t num_rows = span_rows(sequence, num_done, rows_used, rows_left);
  if (num_rows == 0) return;
  // One span with history limits all rows of the pass: the softmax state covers every row.
  if (num_done > 0 && limits_.max_rows_with_history > 0) {
    rows_left = std::min(rows_left, limits_.max_rows_with_history - rows_used);
  }
  const int64_t block = limits_.row_block_tokens;
  rows_left -= (num_rows + block - 1) / block * block;
  batch.sequences.push_back({.sequence = &sequence,
                             .num_rows = num_rows,
                             .wants_token = num_rows == sequence.num_pending()});
}

// One row for every running sequence. Takes blocks from the newest sequences while the older ones
// cannot reserve one; the loop ends early if it preempts the sequence that it serves.
void Scheduler::schedule_decode(Batch& batch) {
  batch.phase = Phase::kDecode;
  // Oldest first, so that a preempted sequence is never one that is in the batch already.
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
    // Tokens with KV after the batch is committed.
    const int64_t num_done = sequence->kv.num_tokens() + (runs ? scheduled->num_rows : 0);
    if (num_done < sequence->kv.prefill_tokens()) {
      const int64_t num_rows = span_rows(*sequence, num_done, 0, limits_.max_num_batched_tokens);
      prefilling.push_back({&sequence->kv, num_done, num_rows});
    } else if (!runs || sequence->num_generated() + 1 < sequence->params.max_tokens) {
      // A block that this decode step fills is sealed only at commit, so it is not expected yet.
      const bool is_decode = batch.phase == Phase::kDecode;
      decoding.push_back({&sequence->kv, is_decode ? sequence->kv.num_tokens() : num_done});
    }
  }
  if (!prefilling.empty()) return prefilling;
  // A waiting sequence is admitted as soon as fewer than max_num_seqs run, if memory allows.
  const bool has_room = static_cast<int32_t>(decoding.size()) < limits_.max_num_seqs;
  return waiting_.empty() || !has_room ? decoding : std::vector<ExpectedSequence>{};
}

// The sequence keeps its tokens; its KV is computed again when it is admitted. It goes to the front
// of the queue, since it is older than every waiting request.
void Scheduler::preempt_newest() {
  SLUICE_CHECK(!running_.empty());
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  release(*sequence);
  waiting_.push_front(std::move(sequence));
  ++num_preemptions_;
}

// Everything keyed by the sequence is dropped (on_release) before its blocks become free.
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
