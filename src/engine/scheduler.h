// Scheduler: which sequences go through the model in the next step, and with how many tokens.
//
// Prefill first, then decode; sequences join and leave between steps (continuous batching). When KV
// runs out in decode, the newest sequence gives its blocks back and waits to be computed again:
// nothing it generated is lost, and since sampling is seeded by position it goes on as it would
// have. Used by LlmEngine. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "attention/residency.h"
#include "engine/sequence.h"
#include "kv/block_manager.h"

namespace sluice {

// One sequence's share of a step.
struct ScheduledSequence {
  Sequence* sequence = nullptr;
  int64_t num_rows = 0;      // tokens to compute: [kv.num_tokens(), + num_rows)
  bool wants_token = false;  // these rows reach the end: sample the next token
};

// What the runner gets: one phase, at least one sequence. Made by the scheduler for one step.
struct Batch {
  Phase phase = Phase::kPrefill;
  std::vector<ScheduledSequence> sequences;

  int64_t num_rows() const {
    int64_t sum = 0;
    for (const ScheduledSequence& s : sequences) sum += s.num_rows;
    return sum;
  }
};

struct SchedulerLimits {
  int32_t max_num_seqs = 0;            // running at once
  int64_t max_num_batched_tokens = 0;  // rows of one prefill pass
  int64_t prefill_chunk_tokens = 0;    // longest span of one sequence in a pass
  // A span that does not end its prompt is a multiple of this (the block size where the residency
  // stages whole blocks, else 1); and rows of a pass in which a sequence has history, where softmax
  // state is carried (0: no limit).
  int64_t span_align_tokens = 1;
  int64_t max_rows_with_history = 0;
};

class Scheduler {
 public:
  // REQUIRES: the block manager outlives the scheduler.
  Scheduler(const SchedulerLimits& limits, BlockManager& blocks);

  // Queues a sequence. REQUIRES: prompt + max_tokens fit the pool when alone (the engine checks),
  // so that a waiting sequence can always run in the end.
  void add(std::unique_ptr<Sequence> sequence);

  // Picks the next step and reserves its KV. Sequences in the batch stay owned by the scheduler.
  // REQUIRES: has_unfinished().
  Batch schedule();

  // What the step after `batch` will probably have, in its order; empty when that is hard to say.
  // REQUIRES: the batch is scheduled and not committed.
  std::vector<ExpectedSequence> expect_next(const Batch& batch) const;

  // Called when a sequence loses its KV: preempted, finished or cancelled.
  std::function<void(Sequence&)> on_release;

  // Takes a finished or cancelled sequence out, gives its blocks back and returns it. Null if there
  // is no such sequence.
  std::unique_ptr<Sequence> remove(SequenceId id);

  // Null if no such sequence has been admitted or it has ended.
  Sequence* find_running(SequenceId id);

  bool has_unfinished() const { return !waiting_.empty() || !running_.empty(); }
  int64_t num_preemptions() const { return num_preemptions_; }

 private:
  void continue_prefills(Batch& batch, int64_t& rows_left);
  void admit_waiting(Batch& batch, int64_t& rows_left);
  int64_t span_rows(const Sequence& sequence, int64_t num_cached, int64_t rows_used,
                    int64_t rows_left) const;
  void schedule_span(Batch& batch, Sequence& sequence, int64_t& rows_left);
  void release(Sequence& sequence);
  void schedule_decode(Batch& batch);
  void preempt_newest();

  SchedulerLimits limits_;
  BlockManager& blocks_;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // front is served first
  std::vector<std::unique_ptr<Sequence>> running_;  // hold KV; oldest first
  int64_t num_preemptions_ = 0;
};

}  // namespace sluice
