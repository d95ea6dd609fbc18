// DraftLimits: how many tokens may be drafted at a time, which memory is planned for.
//
// Made from the options by engine/plan; the speculator keeps to it. Thread rule: plain values.
#pragma once

#include <cstdint>

#include "sluice/engine_options.h"

namespace sluice {

// Sequences of one step that may have drafts; the oldest ones do. Drafts pay where few sequences
// run, and each takes rows of logits and tails.
inline constexpr int64_t kMaxDraftingSeqs = 8;

struct DraftLimits {
  int64_t max_tokens = 0;  // of the draft of one sequence; 0: nothing is drafted
  int64_t max_seqs = 0;    // that have drafts in one step

  int64_t max_rows() const { return max_tokens * max_seqs; }
};

// The options with those of `config` in their fields.
// Errors: kInvalidArgument for a config that is no such object, has an unknown key or a value out
// of range, or stands beside the fields it sets; for a shortest suffix longer than the longest.
SpeculativeOptions resolve_speculative(const SpeculativeOptions& options);

// REQUIRES: valid options.
DraftLimits draft_limits(const SpeculativeOptions& options, int64_t max_num_seqs);

constexpr bool drafts_ngrams(SpeculativeMethod method) {
  return method == SpeculativeMethod::kNgram || method == SpeculativeMethod::kNgramSparse;
}
constexpr bool drafts_sparsely(SpeculativeMethod method) {
  return method == SpeculativeMethod::kSparse || method == SpeculativeMethod::kNgramSparse;
}

}  // namespace sluice
