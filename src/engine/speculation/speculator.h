// Speculator: decides how many tokens each sequence drafts, asks the draft source for them, and
// judges them when they were verified.
//
// Used by LlmEngine in decode steps. Drafts by the model itself (method "sparse") are passes, which
// the engine runs; the speculator says how long they may be. Nothing here changes a token, but
// forced acceptance, which only benchmarks have. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/sampling/sampler.h"
#include "engine/sequence.h"
#include "engine/speculation/draft_length.h"
#include "engine/speculation/draft_limits.h"
#include "engine/speculation/draft_source.h"
#include "sluice/observations.h"

namespace sluice {

class Speculator {
 public:
  struct Parts {
    SpeculativeOptions options;  // resolved
    DraftLimits limits;
    int64_t vocab_size = 0;
    std::unique_ptr<DraftSource> source;  // null: none, or the n-gram search if the method has it
    ForcedAcceptance forced = nullptr;    // null: none
  };
  explicit Speculator(Parts parts);

  const DraftLimits& limits() const { return limits_; }
  // Whether drafts come from passes with the decode policy where the source has none.
  bool drafts_sparsely() const { return sluice::drafts_sparsely(options_.method); }

  // Tokens that the sequence may draft in a step; 0: it decodes one token.
  int64_t max_drafts(const Sequence& sequence) const;

  // Begins a step of `num_seqs` sequences, of which `num_drafting` may draft.
  void begin_step(int64_t num_seqs, int64_t num_drafting);
  // Asks the source for drafts; the sequence has them then, or none. REQUIRES: it may draft.
  void ask_source(Sequence& sequence);
  // Tokens that passes draft for a sequence without drafts of the source. REQUIRES: it may draft.
  int64_t num_from_passes(const Sequence& sequence);

  // A decode or verify pass of this many rows, or a draft pass, took this long.
  void measured_pass(int64_t num_rows, int64_t duration_ns) {
    length_.verified(num_rows, duration_ns);
  }
  void measured_draft(int64_t duration_ns) { length_.drafted(duration_ns); }

  // Whether draft `index` of the sequence is what the verifying pass gave for its position, and all
  // before it were. Forced: the token becomes the draft.
  bool accepts(const Sequence& sequence, size_t index, SampledToken& token) const;
  // The step's draft was judged: its first `num_accepted` tokens are in the text.
  void judged(Sequence& sequence, int64_t num_accepted);
  // The sequence has ended.
  void forget(SequenceId id) {
    if (source_) source_->forget(id);
  }

  // Of all sequences.
  const SpeculationCounts& counts() const { return counts_; }

 private:
  int64_t choose(const Sequence& sequence, DraftKind kind);

  SpeculativeOptions options_;
  DraftLimits limits_;
  int64_t vocab_size_;
  std::unique_ptr<DraftSource> source_;
  ForcedAcceptance forced_;
  DraftLength length_;
  int64_t num_seqs_ = 0;  // of the step
  int64_t num_drafting_ = 0;
  SpeculationCounts counts_;
};

}  // namespace sluice
