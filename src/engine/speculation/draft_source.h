// DraftSource: guesses the next tokens of a sequence on the host, without the model.
//
// The speculator asks one for each sequence that speculates, before a decode step. What it answers
// decides the speed alone: a token is kept only if the pass that verifies it gives the same one.
// The engine has the n-gram search (ngram_source.h); tests and benchmarks give it others
// (LlmEngine::Parts), also such as are always wrong. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/ids.h"

namespace sluice {

struct DraftQuery {
  SequenceId id;
  std::span<const int32_t> tokens;  // prompt and output so far
  int64_t num_prompt_tokens = 0;
  int64_t max_tokens = 0;  // of the draft; at least 1
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // Appends at most max_tokens ids to `draft`, which is empty; none where it has no guess. Ids
  // outside the vocabulary end the draft before them.
  virtual void draft(const DraftQuery& query, std::vector<int32_t>& draft) = 0;
  // The sequence has ended.
  virtual void forget(SequenceId) {}
};

// For benchmarks on weights whose text means nothing, never for answers: says whether the draft
// token at `position` counts as accepted, whatever the verifying pass gives. An accepted token is
// the drafted one, so the text is no model's. Must be a function of its arguments alone.
using ForcedAcceptance = std::function<bool(SequenceId id, int64_t position)>;

// Accepts with probability `rate`, by position and id: equal in every run.
ForcedAcceptance accept_at_rate(double rate);

}  // namespace sluice
