// Limits of drafts, the source, and the judgement.
#include "engine/speculation/speculator.h"

#include <algorithm>
#include <utility>

#include "engine/speculation/ngram_source.h"

namespace sluice {

Speculator::Speculator(Parts parts)
    : options_(std::move(parts.options)),
      limits_(parts.limits),
      vocab_size_(parts.vocab_size),
      source_(std::move(parts.source)),
      forced_(std::move(parts.forced)),
      length_(limits_.max_tokens) {
  if (source_ || !drafts_ngrams(options_.method)) return;
  source_ = std::make_unique<NgramSource>(options_.prompt_lookup_min, options_.prompt_lookup_max);
}

// A verify pass gives one token more than it has drafts, and max_tokens is the most.
int64_t Speculator::max_drafts(const Sequence& sequence) const {
  if (!sequence.draft.record.may_draft) return 0;
  const int64_t num_left = sequence.params.max_tokens - sequence.num_generated();
  return std::clamp<int64_t>(num_left - 1, 0, limits_.max_tokens);
}

void Speculator::begin_step(int64_t num_seqs, int64_t num_drafting) {
  num_seqs_ = num_seqs;
  num_drafting_ = num_drafting;
}

int64_t Speculator::choose(const Sequence& sequence, DraftKind kind) {
  const int64_t limit = max_drafts(sequence);
  if (options_.num_tokens) return limit;
  const AcceptanceRate& rate = sequence.draft.record.of(kind);
  return std::min(limit, length_.choose(kind, rate, num_seqs_, num_drafting_));
}

int64_t Speculator::num_from_passes(const Sequence& sequence) {
  return drafts_sparsely() ? choose(sequence, DraftKind::kSparse) : 0;
}

void Speculator::ask_source(Sequence& sequence) {
  sequence.draft.tokens.clear();
  sequence.draft.record.newest = DraftKind::kSource;
  if (!source_) return;
  const int64_t max_tokens = choose(sequence, DraftKind::kSource);
  if (max_tokens == 0) return;
  source_->draft({.id = sequence.id,
                  .tokens = sequence.tokens,
                  .num_prompt_tokens = sequence.num_prompt_tokens,
                  .max_tokens = max_tokens},
                 sequence.draft.tokens);
  const auto is_no_token = [this](int32_t id) { return id < 0 || id >= vocab_size_; };
  const auto end = std::ranges::find_if(sequence.draft.tokens, is_no_token);
  const auto num_good = static_cast<size_t>(end - sequence.draft.tokens.begin());
  sequence.draft.tokens.resize(std::min(num_good, static_cast<size_t>(max_tokens)));
}

bool Speculator::accepts(const Sequence& sequence, size_t index, SampledToken& token) const {
  const int32_t draft = sequence.draft.tokens[index];
  if (!forced_) return token.token_id == draft;
  if (!forced_(sequence.id, sequence.num_tokens())) return false;
  token.token_id = draft;
  return true;
}

void Speculator::judged(Sequence& sequence, int64_t num_accepted) {
  const auto num_drafted = std::ssize(sequence.draft.tokens);
  if (num_drafted == 0) return;
  const DraftKind kind = sequence.draft.record.newest;
  sequence.draft.record.of(kind).add(num_drafted, num_accepted);
  length_.judged(kind, num_drafted, num_accepted);
  const SpeculationCounts newest{
      .num_drafts = 1, .num_draft_tokens = num_drafted, .num_accepted_tokens = num_accepted};
  counts_.add(newest);
  sequence.answer.output.speculation.add(newest);
  sequence.draft.tokens.clear();
}

}  // namespace sluice
