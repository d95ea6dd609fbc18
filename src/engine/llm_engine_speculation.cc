// Decode steps with speculation: drafts, the pass that verifies them, and what it keeps.
//
// A step has up to k draft passes, each an ordinary decode pass one row further ahead, and a verify
// pass over the newest token and the drafts of every sequence. The verify pass writes the KV of all
// its rows again, with full attention. Its rows are then committed one by one, as those of as many
// decode steps, up to the first draft that differs (docs/adr/0024).
#include <algorithm>

#include "engine/llm_engine.h"

namespace sluice {

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

// Blocks are reserved for the drafts that the source has, or for as many as passes may make:
// num_drafts of the sequence says how many.
void LlmEngine::draft_by_source(Batch& batch) {
  int64_t num_seats = speculator_->limits().max_seqs;
  for (ScheduledSequence& scheduled : batch.sequences) {
    if (num_seats == 0) break;
    Sequence& sequence = *scheduled.sequence;
    int64_t wanted = speculator_->max_drafts(sequence);
    if (wanted == 0) continue;
    speculator_->ask_source(sequence, wanted);
    if (!sequence.drafts.empty()) wanted = std::ssize(sequence.drafts);
    if (sequence.drafts.empty() && !speculator_->drafts_sparsely()) continue;
    scheduled.num_drafts = scheduler_->reserve_drafts(sequence, wanted);
    if (!sequence.drafts.empty()) {
      sequence.drafts.resize(static_cast<size_t>(scheduled.num_drafts));
    }
    num_seats -= scheduled.num_drafts > 0 ? 1 : 0;
  }
}

// Sequences without drafts of the source, each as long as it may.
void LlmEngine::draft_by_passes(Batch& batch) {
  Batch drafting{.phase = Phase::kDecode, .sequences = {}, .is_draft = true};
  for (const ScheduledSequence& scheduled : batch.sequences) {
    if (scheduled.num_drafts == 0 || !scheduled.sequence->drafts.empty()) continue;
    scheduled.sequence->draft_record.newest = DraftKind::kSparse;
    drafting.sequences.push_back(scheduled);
  }
  for (int64_t num_ahead = 0; !drafting.sequences.empty(); ++num_ahead) {
    if (!run_draft_pass(drafting, num_ahead)) break;
    std::erase_if(drafting.sequences, [&](const ScheduledSequence& scheduled) {
      const Sequence& sequence = *scheduled.sequence;
      return scheduled.num_drafts == std::ssize(sequence.drafts) ||
             is_end_token(sequence, sequence.drafts.back());
    });
  }
}

// One more draft token for each sequence of `batch`, after `num_ahead` of them.
bool LlmEngine::run_draft_pass(const Batch& batch, int64_t num_ahead) {
  Batch pass{.phase = batch.phase, .sequences = {}, .is_draft = true};
  for (const ScheduledSequence& scheduled : batch.sequences) {
    if (scheduled.sequence->is_cancelled()) return false;
    pass.sequences.push_back({.sequence = scheduled.sequence,
                              .num_rows = 1,
                              .wants_token = true,
                              .num_ahead = num_ahead});
  }
  const int64_t begin_ns = now_ns_();
  observer_->begin_step(pass);
  const auto expect_nothing = [] { return std::vector<ExpectedSequence>(); };
  const auto tokens = run_batch(pass, expect_nothing, nullptr);
  for (const SampledToken& token : *tokens) token.sequence->drafts.push_back(token.token_id);
  observer_->end_step(pass);
  stats_.draft_ns += now_ns_() - begin_ns;
  return true;
}

std::vector<ExpectedSequence> LlmEngine::expect_next(const Batch& batch) const {
  return scheduler_->expect_next(batch);
}

void LlmEngine::commit_verified(const Batch& batch, std::span<const SampledToken> tokens,
                                std::vector<RequestOutput>& outputs) {
  for (const ScheduledSequence& scheduled : batch.sequences) {
    const auto count = static_cast<size_t>(scheduled.num_sampled());
    commit_draft(*scheduled.sequence, tokens.first(count));
    report_token(*scheduled.sequence, outputs);
    tokens = tokens.subspan(count);
  }
}

// Commits the rows of accepted drafts and the one after them, as that many decode steps would: what
// a token ends, ends there.
void LlmEngine::commit_draft(Sequence& sequence, std::span<const SampledToken> tokens) {
  int64_t num_accepted = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    SampledToken token = tokens[i];
    const bool accepted = i < sequence.drafts.size() && speculator_->accepts(sequence, i, token);
    commit_rows(sequence, Phase::kVerify, 1);
    sequence.set_prompt_done(sequence.kv.num_tokens());
    append_token(token);
    num_accepted += accepted ? 1 : 0;
    if (!accepted || sequence.output.finished()) break;
  }
  speculator_->judged(sequence, num_accepted);
  blocks_->drop_reserved(sequence.kv);
  residency_->drop_drafts(sequence.id, sequence.kv);
}

}  // namespace sluice
