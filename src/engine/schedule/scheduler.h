// Scheduler: selects the sequences of the next step and the number of tokens of each.
//
// Prefill passes alternate with decode steps, so that running sequences get tokens while a long
// prompt is computed; sequences join and leave between steps (continuous batching). If KV blocks
// run out in decode, the newest sequence returns its blocks and waits to be computed again. It
// keeps its tokens, and since draws are seeded by position it continues with the same tokens.
//
// Rows of a prefill pass are dealt to the prompt with the fewest tokens left first, and before it
// to one that got none in kMaxPassesMissed passes. Memory is given in order of arrival: a request
// is admitted only while all requests that came before it would fit, too. A request whose next
// block a running one is about to compute is held: it waits without memory, and others overtake it,
// until that block is in the prefix cache or its maker is gone. With max_stall_ns passes
// are cut by the time that they take (pass_room.h), and after each the running sequences decode for
// one and a half times as long. So they keep at least half of their rate beside any prompt, also
// where a step takes a fifth longer beside a pass, whose data is in the caches; a prompt loses what
// they compute meanwhile, and no more. A new request interrupts their time for its first pass, and
// they get the rest of it afterwards. None of this changes a result. Used by LlmEngine. Thread
// rule: the engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/pass_kind.h"
#include "engine/kv/kv_station.h"
#include "engine/schedule/pass_room.h"
#include "engine/schedule/prefill_rates.h"
#include "engine/sequence.h"

namespace sluice {

// One sequence's share of a step.
struct ScheduledSequence {
  Sequence* sequence = nullptr;
  int64_t num_rows = 0;      // tokens to compute: [first_pos(), + num_rows)
  bool wants_token = false;  // the rows include the last token: sample the next one
  // Draft passes: rows before these that are computed for this step and not valid.
  int64_t num_ahead = 0;
  // Verify passes: the last rows, whose tokens are drafts; what follows each is sampled as well.
  int64_t num_drafts = 0;

  int64_t first_pos() const { return sequence->kv.num_tokens() + num_ahead; }
  int64_t num_sampled() const { return wants_token ? 1 + num_drafts : 0; }
};

// The work of one step: one phase, at least one sequence. Made by the scheduler, run by the runner.
struct Batch {
  PassKind kind;
  std::vector<ScheduledSequence> sequences;
  // Called when the pass is enqueued, if not null: starts what is done beside the device.
  std::function<void()> when_enqueued = nullptr;

  // Whether a sequence may give no token now and repeat its rows later: spans of prompts end where
  // the plan has them end, and a draft pass is followed by the one that verifies it.
  bool may_skip_tokens() const { return !kind.is_prefill && !kind.is_draft; }
  // Tokens that the pass samples.
  int64_t num_sampled() const {
    int64_t sum = 0;
    for (const ScheduledSequence& s : sequences) sum += s.num_sampled();
    return sum;
  }
  // Tokens of all spans.
  int64_t num_rows() const {
    int64_t sum = 0;
    for (const ScheduledSequence& s : sequences) sum += s.num_rows;
    return sum;
  }
};

// A sequence that the next pass will probably include.
struct ExpectedSequence {
  SequenceId id;
  int64_t num_sealed_tokens = 0;  // by then
  int64_t num_rows = 0;           // of its next span; 0 in decode
  bool is_verify = false;         // of a decode step: it attends to everything
};

// The requests that a scheduler holds. A preempted one waits again.
struct QueueSizes {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_waiting_prompt_tokens = 0;  // all tokens of their prompts, also cached ones
};

class Scheduler {
 public:
  // REQUIRES: the station outlives the scheduler.
  Scheduler(const SchedulerLimits& limits, KvStation& kv);

  // Queues a sequence. REQUIRES: its prompt + max_tokens fit the pool if it runs alone (the engine
  // checks), so that every waiting sequence runs eventually.
  void add(std::unique_ptr<Sequence> sequence);

  // Selects the next step and reserves its KV blocks. After a prefill pass it is a decode step, if
  // a sequence can decode. The scheduler keeps the ownership of the sequences in the batch. Empty
  // only while a sequence loads or waits for its grammar, or other holders have blocks
  // (BlockManager::hold).
  Batch schedule();

  // `batch` ran and took this long. Not called for a pass that was cancelled.
  // REQUIRES: its rows are not committed yet.
  void measured(const Batch& batch, int64_t duration_ns);

  // The sequences that the step after `batch` will probably run, in its order; empty if unknown. A
  // wrong guess costs transfers, never results.
  std::vector<ExpectedSequence> expect_next(const Batch& batch) const;

  // The sequences whose flag is set.
  std::vector<SequenceId> cancelled_ids() const;

  // Removes a finished or cancelled sequence, returns its blocks and the sequence itself. Null if
  // there is none with this id.
  std::unique_ptr<Sequence> remove(SequenceId id);

  // The running sequence with this id. Null if it waits, has ended, or never existed.
  Sequence* find_running(SequenceId id) const;

  // Those that hold KV, in order of arrival.
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }
  // What prefill has cost so far.
  const PrefillRates& rates() const { return rates_; }

  bool has_unfinished() const { return !waiting_.empty() || !running_.empty(); }
  // Cost: O(waiting).
  QueueSizes queue_sizes() const;
  // Since construction.
  int64_t num_preemptions() const { return num_preemptions_; }

 private:
  // A sequence that may get rows in the next prefill pass.
  struct Candidate {
    Sequence* sequence = nullptr;
    int64_t num_done = 0;  // tokens with KV; of a waiting sequence, in the prefix cache
    bool waits = false;

    int64_t num_left() const { return sequence->num_tokens() - num_done; }
  };

  void take_back();
  bool decode_is_due();
  Batch prefill_batch();
  Batch decode_batch();
  std::vector<Candidate> admissible();
  const Sequence* maker_of(const Sequence& sequence) const;
  bool hold(Sequence& sequence, int64_t num_cached) const;
  static void sort(std::vector<Candidate>& candidates);
  int64_t end_of_rows(const Sequence& sequence, int64_t num_done) const;
  int64_t take_rows(const Candidate& candidate, PassRoom& room);
  std::vector<ExpectedSequence> expect_prefill(std::vector<Candidate> candidates) const;
  void preempt_newest();

  static constexpr int32_t kMaxPassesMissed = 8;

  SchedulerLimits limits_;
  KvStation& kv_;
  // Both in order of arrival, that is, of ids.
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // hold KV
  PrefillRates rates_;
  bool last_was_prefill_ = false;  // the last step
  // With max_stall_ns: time that running sequences may still decode before the next pass.
  int64_t decode_ns_due_ = 0;
  int64_t last_decode_ns_ = 0;
  int64_t num_preemptions_ = 0;
};

}  // namespace sluice
