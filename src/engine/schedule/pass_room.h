// PassRoom: the rows, and the time, that are left in one prefill pass while spans are dealt out.
//
// Made by Scheduler for each pass, and for its guess at the next one. Thread rule: the engine's
// thread.
#pragma once

#include <cstdint>

#include "engine/schedule/prefill_rates.h"

namespace sluice {

struct SchedulerLimits {
  int32_t max_num_seqs = 0;            // sequences that hold KV at the same time
  int64_t max_num_batched_tokens = 0;  // rows of one prefill pass
  int64_t prefill_chunk_tokens = 0;    // longest span of one sequence in a pass
  // A span begins at a multiple of this and ends at one, or at its prompt's end: at whole blocks if
  // the residency stages blocks, and at whole scopes of the prefill policy.
  int64_t span_align_tokens = 1;
  // A span that ends before its prompt ends at a multiple of this, wherever it begins, so that
  // neither the length of passes nor neighbours cut what kernels of recurrent states compute at
  // once. 1: anywhere; else a multiple of span_align_tokens, at most prefill_chunk_tokens.
  int64_t state_align_tokens = 1;
  // A span takes a multiple of this many rows of a pass: the block size if the residency stages
  // whole blocks, since spans do not share a block; else 1.
  int64_t row_block_tokens = 1;
  // Most rows of a pass in which some sequence has history, whose softmax state must be carried. 0:
  // no limit.
  int64_t max_rows_with_history = 0;
  // Longest time of a prefill pass, by the rates measured so far; 0: no limit. A pass has at least
  // one span, of min_span_tokens rows, or a prompt's last ones, whatever they take.
  int64_t max_stall_ns = 0;
  // A multiple of span_align_tokens and state_align_tokens, at most prefill_chunk_tokens.
  int64_t min_span_tokens = 1;
};

class PassRoom {
 public:
  // REQUIRES: both references outlive the room.
  PassRoom(const SchedulerLimits& limits, const PrefillRates& rates);

  // Takes the rows of the next span of a prompt of `num_tokens` tokens, of which `num_done` have
  // KV, and returns their number; 0 if the prompt must wait for the next pass. A span that ends
  // before `num_tokens` is a multiple of span_align_tokens, and ends at one of state_align_tokens.
  int64_t take(int64_t num_done, int64_t num_tokens);

 private:
  int64_t aligned(int64_t num_done, int64_t num_rows) const;
  int64_t rows_in_time(int64_t num_done, int64_t num_pending) const;

  const SchedulerLimits& limits_;
  const PrefillRates& rates_;
  int64_t num_used_ = 0;  // rows taken
  int64_t rows_left_ = 0;
  int64_t ns_left_ = 0;  // of max_stall_ns
};

}  // namespace sluice
