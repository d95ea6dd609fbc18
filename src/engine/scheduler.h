// Scheduler: selects the sequences of the next step and the number of tokens of each.
//
// Prefill first, then decode; sequences join and leave between steps (continuous batching). If KV
// blocks run out in decode, the newest sequence returns its blocks and waits to be computed again.
// It keeps its tokens, and since draws are seeded by position it continues with the same tokens.
// Used by LlmEngine. Thread rule: the engine's thread.
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
  bool wants_token = false;  // the rows include the last token: sample the next one
};

// The work of one step: one phase, at least one sequence. Made by the scheduler, run by the runner.
struct Batch {
  Phase phase = Phase::kPrefill;
  std::vector<ScheduledSequence> sequences;

  // Tokens of all spans.
  int64_t num_rows() const {
    int64_t sum = 0;
    for (const ScheduledSequence& s : sequences) sum += s.num_rows;
    return sum;
  }
};

struct SchedulerLimits {
  int32_t max_num_seqs = 0;            // sequences that hold KV at the same time
  int64_t max_num_batched_tokens = 0;  // rows of one prefill pass
  int64_t prefill_chunk_tokens = 0;    // longest span of one sequence in a pass
  // A span begins at a multiple of this and ends at one, or at its prompt's end: at whole blocks if
  // the residency stages blocks, and at whole scopes of the prefill policy.
  int64_t span_align_tokens = 1;
  // A span takes a multiple of this many rows of a pass: the block size if the residency stages
  // whole blocks, since spans do not share a block; else 1.
  int64_t row_block_tokens = 1;
  // Most rows of a pass in which some sequence has history, whose softmax state must be carried. 0:
  // no limit.
  int64_t max_rows_with_history = 0;
};

class Scheduler {
 public:
  // REQUIRES: the block manager outlives the scheduler.
  Scheduler(const SchedulerLimits& limits, BlockManager& blocks);

  // Queues a sequence. REQUIRES: its prompt + max_tokens fit the pool if it runs alone (the engine
  // checks), so that every waiting sequence runs eventually.
  void add(std::unique_ptr<Sequence> sequence);

  // Selects the next step and reserves its KV blocks. The scheduler keeps the ownership of the
  // sequences in the batch.
  Batch schedule();

  // The sequences that the step after `batch` will probably run, in its order; empty if unknown. A
  // wrong guess costs transfers, never results.
  std::vector<ExpectedSequence> expect_next(const Batch& batch) const;

  // Called before a sequence's blocks are returned: it was preempted, has finished or was
  // cancelled.
  std::function<void(Sequence&)> on_release;

  // Removes a finished or cancelled sequence, returns its blocks and the sequence itself. Null if
  // there is none with this id.
  std::unique_ptr<Sequence> remove(SequenceId id);

  // The running sequence with this id. Null if it waits, has ended, or never existed.
  Sequence* find_running(SequenceId id);

  bool has_unfinished() const { return !waiting_.empty() || !running_.empty(); }
  // Since construction.
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
