// Decode steps with speculation: drafts, the pass that verifies them, and what it keeps.
//
// A step has up to k draft passes, each an ordinary decode pass one row further ahead, and a verify
// pass over the newest token and the drafts of every sequence. The verify pass writes the KV of all
// its rows again, with full attention. Its rows are then committed one by one, as those of as many
// decode steps, up to the first draft that differs (docs/adr/0024).
#include <algorithm>

#include "engine/llm_engine.h"

namespace sluice {
namespace {

bool is_cancelled(const ScheduledSequence& scheduled) { return scheduled.sequence->is_cancelled(); }

// What the verify pass of this step reads.
std::vector<ExpectedSequence> expected_in_verify(const Batch& batch) {
  std::vector<ExpectedSequence> expected;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    const SequenceKv& kv = scheduled.sequence->kv;
    expected.push_back({.kv = &kv, .num_sealed_tokens = kv.num_tokens(), .is_verify = true});
  }
  return expected;
}

}  // namespace

void LlmEngine::make_speculator(const EngineOptions& options, Parts& parts) {
  const SpeculativeOptions resolved = resolve_speculative(options.speculative);
  if (resolved.method == SpeculativeMethod::kNone) return;
  speculator_ = std::make_unique<Speculator>(
      Speculator::Parts{.options = resolved,
                        .limits = draft_limits(resolved, plan_.passes.limits.max_seqs),
                        .vocab_size = config_.vocab_size,
                        .source = std::move(parts.draft_source),
                        .forced = std::move(parts.forced_acceptance)});
}

// Makes a verify pass of a decode step: also without drafts where the decode policy only drafts.
void LlmEngine::speculate(Batch& batch) {
  draft_by_source(batch);
  if (speculator_->drafts_sparsely()) draft_by_passes(batch);
  bool has_drafts = false;
  for (ScheduledSequence& scheduled : batch.sequences) {
    scheduled.num_drafts = std::ssize(scheduled.sequence->drafts);
    scheduled.num_rows = 1 + scheduled.num_drafts;
    has_drafts = has_drafts || scheduled.num_drafts > 0;
  }
  if (has_drafts || speculator_->drafts_sparsely()) batch.phase = Phase::kVerify;
}

// Blocks are reserved for the drafts that the source has, or for as many as passes are to make:
// num_drafts of the sequence says how many.
void LlmEngine::draft_by_source(Batch& batch) {
  const auto may_draft = [this](const ScheduledSequence& scheduled) {
    return speculator_->max_drafts(*scheduled.sequence) > 0;
  };
  int64_t num_seats = std::min<int64_t>(speculator_->limits().max_seqs,
                                        std::ranges::count_if(batch.sequences, may_draft));
  speculator_->begin_step(std::ssize(batch.sequences), num_seats);
  for (ScheduledSequence& scheduled : batch.sequences) {
    if (num_seats == 0 || !may_draft(scheduled)) continue;
    --num_seats;
    Sequence& sequence = *scheduled.sequence;
    speculator_->ask_source(sequence);
    const int64_t wanted = sequence.drafts.empty() ? speculator_->num_from_passes(sequence)
                                                   : std::ssize(sequence.drafts);
    scheduled.num_drafts = scheduler_->reserve_drafts(sequence, wanted);
    const auto num_drafts = static_cast<size_t>(scheduled.num_drafts);
    if (sequence.drafts.size() > num_drafts) sequence.drafts.resize(num_drafts);
  }
}

// Sequences without drafts of the source, each as long as it may.
void LlmEngine::draft_by_passes(const Batch& batch) {
  Batch drafting{.phase = Phase::kDecode, .sequences = {}, .is_draft = true};
  int64_t longest = 0;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    if (scheduled.num_drafts == 0 || !scheduled.sequence->drafts.empty()) continue;
    scheduled.sequence->draft_record.newest = DraftKind::kSparse;
    drafting.sequences.push_back(scheduled);
    longest = std::max(longest, scheduled.num_drafts);
  }
  const auto expect_nothing = [] { return std::vector<ExpectedSequence>(); };
  const auto expect_verify = [&] { return expected_in_verify(batch); };
  for (int64_t num_ahead = 0; !drafting.sequences.empty(); ++num_ahead) {
    if (std::ranges::any_of(drafting.sequences, is_cancelled)) break;
    // The history that the verify pass streams begins to load beside the last draft pass.
    const bool is_last = num_ahead + 1 == longest;
    run_draft_pass(drafting, num_ahead,
                   is_last ? Residency::ExpectNext(expect_verify) : expect_nothing);
    std::erase_if(drafting.sequences, [&](const ScheduledSequence& scheduled) {
      const Sequence& sequence = *scheduled.sequence;
      return scheduled.num_drafts == std::ssize(sequence.drafts) ||
             is_end_token(sequence, sequence.drafts.back());
    });
  }
}

// One more draft token for each sequence of `batch`, after `num_ahead` of them.
void LlmEngine::run_draft_pass(const Batch& batch, int64_t num_ahead,
                               const Residency::ExpectNext& expect_next) {
  const int64_t begin_ns = now_ns_();
  Batch pass{.phase = batch.phase, .sequences = {}, .is_draft = true};
  for (const ScheduledSequence& scheduled : batch.sequences) {
    pass.sequences.push_back({.sequence = scheduled.sequence,
                              .num_rows = 1,
                              .wants_token = true,
                              .num_ahead = num_ahead});
  }
  observer_->begin_step(pass);
  const auto tokens = run_batch(pass, expect_next, nullptr);
  for (const SampledToken& token : *tokens) token.sequence->drafts.push_back(token.token_id);
  observer_->end_step(pass);
  const int64_t draft_ns = now_ns_() - begin_ns;
  speculator_->measured_draft(draft_ns);
  stats_.draft_ns += draft_ns;
}

// A step after one without drafts will probably have none either.
std::vector<ExpectedSequence> LlmEngine::expect_next(const Batch& batch) const {
  std::vector<ExpectedSequence> expected = scheduler_->expect_next(batch);
  const auto has_drafts = [](const ScheduledSequence& s) { return s.num_drafts > 0; };
  const bool verifies =
      batch.phase == Phase::kVerify && std::ranges::none_of(batch.sequences, has_drafts);
  for (ExpectedSequence& next : expected) next.is_verify = verifies;
  return expected;
}

}  // namespace sluice
