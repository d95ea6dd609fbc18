// Drafts of the source first, then passes for the sequences without any.
#include "engine/stations/speculative_drafts.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

bool is_cancelled(const ScheduledSequence& scheduled) { return scheduled.sequence->is_cancelled(); }

// What the verify pass of this step reads.
std::vector<ExpectedSequence> expected_in_verify(const Batch& batch) {
  std::vector<ExpectedSequence> expected;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    const Sequence& sequence = *scheduled.sequence;
    expected.push_back(
        {.id = sequence.id, .num_sealed_tokens = sequence.kv.num_tokens(), .is_verify = true});
  }
  return expected;
}

}  // namespace

void SpeculativeDrafts::plan(Batch& batch) {
  if (batch.kind.is_prefill) return;
  draft_by_source(batch);
  if (speculator_.drafts_sparsely()) draft_by_passes(batch);
  bool has_drafts = false;
  for (ScheduledSequence& scheduled : batch.sequences) {
    scheduled.num_drafts = std::ssize(scheduled.sequence->draft.tokens);
    scheduled.num_rows = 1 + scheduled.num_drafts;
    has_drafts = has_drafts || scheduled.num_drafts > 0;
  }
  if (has_drafts || speculator_.drafts_sparsely()) batch.kind = PassKind::verify();
  planned_ns_ = stations_.now_ns();
}

// Blocks are reserved for the drafts that the source has, or for as many as passes are to make:
// num_drafts of the sequence says how many.
void SpeculativeDrafts::draft_by_source(Batch& batch) {
  const auto may_draft = [this](const ScheduledSequence& scheduled) {
    return speculator_.max_drafts(*scheduled.sequence) > 0;
  };
  int64_t num_seats = std::min<int64_t>(speculator_.limits().max_seqs,
                                        std::ranges::count_if(batch.sequences, may_draft));
  speculator_.begin_step(std::ssize(batch.sequences), num_seats);
  for (ScheduledSequence& scheduled : batch.sequences) {
    if (num_seats == 0 || !may_draft(scheduled)) continue;
    --num_seats;
    Sequence& sequence = *scheduled.sequence;
    speculator_.ask_source(sequence);
    Grammars::cut_drafts(sequence);
    const int64_t wanted = sequence.draft.tokens.empty() ? speculator_.num_from_passes(sequence)
                                                         : std::ssize(sequence.draft.tokens);
    scheduled.num_drafts = stations_.kv.reserve_drafts(sequence, wanted);
    const auto num_drafts = static_cast<size_t>(scheduled.num_drafts);
    if (sequence.draft.tokens.size() > num_drafts) sequence.draft.tokens.resize(num_drafts);
  }
}

// Sequences without drafts of the source, each as long as it may.
void SpeculativeDrafts::draft_by_passes(const Batch& batch) {
  Batch drafting{.kind = PassKind::draft(), .sequences = {}};
  int64_t longest = 0;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    if (scheduled.num_drafts == 0 || !scheduled.sequence->draft.tokens.empty()) continue;
    scheduled.sequence->draft.record.newest = DraftKind::kSparse;
    drafting.sequences.push_back(scheduled);
    longest = std::max(longest, scheduled.num_drafts);
  }
  for (int64_t num_ahead = 0; !drafting.sequences.empty(); ++num_ahead) {
    if (std::ranges::any_of(drafting.sequences, is_cancelled)) break;
    // The history that the verify pass streams begins to load beside the last draft pass.
    const bool is_last = num_ahead + 1 == longest;
    run_draft_pass(drafting, num_ahead,
                   is_last ? expected_in_verify(batch) : std::vector<ExpectedSequence>());
    std::erase_if(drafting.sequences, [&](const ScheduledSequence& scheduled) {
      Sequence& sequence = *scheduled.sequence;
      Grammars::cut_drafts(sequence);
      const auto num_drafts = std::ssize(sequence.draft.tokens);
      return scheduled.num_drafts == num_drafts || num_drafts <= num_ahead ||
             stations_.answers.is_end_token(sequence, sequence.draft.tokens.back());
    });
  }
}

// One more draft token for each sequence of `batch`, after `num_ahead` of them.
void SpeculativeDrafts::run_draft_pass(const Batch& batch, int64_t num_ahead,
                                       std::vector<ExpectedSequence> expected) {
  const int64_t begin_ns = stations_.now_ns();
  Batch pass{.kind = batch.kind, .sequences = {}};
  for (const ScheduledSequence& scheduled : batch.sequences) {
    pass.sequences.push_back({.sequence = scheduled.sequence,
                              .num_rows = 1,
                              .wants_token = true,
                              .num_ahead = num_ahead});
  }
  // One that cannot go on has no more drafts, and ends after the verify pass.
  stations_.grammars.order_masks(pass);
  stations_.observer.begin_step(pass);
  const auto tokens = stations_.rank.run(pass, stations_.kv, std::move(expected));
  for (const SampledToken& token : *tokens) {
    Sequence& sequence = *token.sequence;
    if (sequence.grammar.gives_token()) sequence.draft.tokens.push_back(token.token_id);
  }
  stations_.observer.end_step(pass);
  const int64_t draft_ns = stations_.now_ns() - begin_ns;
  speculator_.measured_draft(draft_ns);
  draft_ns_ += draft_ns;
}

void SpeculativeDrafts::measured(const Batch& batch, int64_t end_ns) {
  if (batch.kind.is_prefill) return;
  speculator_.measured_pass(batch.num_rows(), end_ns - planned_ns_);
}

bool SpeculativeDrafts::accepts(const Sequence& sequence, size_t index, SampledToken& token) {
  return index < sequence.draft.tokens.size() && speculator_.accepts(sequence, index, token);
}

void SpeculativeDrafts::judged(Sequence& sequence, int64_t num_accepted) {
  speculator_.judged(sequence, num_accepted);
}

}  // namespace sluice
