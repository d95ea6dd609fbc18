// What a pass has computed becomes part of its sequences: rows with valid KV, tokens, outputs,
// ends.
#include "engine/llm_engine.h"

namespace sluice {

void LlmEngine::commit(const Batch& batch, std::span<const SampledToken> tokens,
                       std::vector<RequestOutput>& outputs) {
  if (batch.phase == Phase::kVerify) return commit_verified(batch, tokens, outputs);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = batch.sequences[i];
    Sequence& sequence = *scheduled.sequence;
    commit_rows(sequence, batch.phase, scheduled.num_rows);
    if (batch.phase == Phase::kPrefill) observer_->count_mass(sequence, static_cast<int64_t>(i));
    sequence.set_prompt_done(sequence.kv.num_tokens());
    if (!scheduled.wants_token && sequence.params.output_kind == OutputKind::kDelta) {
      outputs.push_back(sequence.take_output());
    }
  }
  for (const SampledToken& token : tokens) {
    append_token(token);
    report_token(*token.sequence, outputs);
  }
}

// The next `num_rows` rows of the sequence have valid KV.
void LlmEngine::commit_rows(Sequence& sequence, Phase phase, int64_t num_rows) {
  blocks_->commit(sequence.kv, sequence.tokens, num_rows);
  residency_->committed(sequence.id, sequence.kv);
  if (kv_store_) kv_store_->committed(sequence, phase);
}

// After the tokens of a step: hands them out, and ends the sequence if the last one did.
void LlmEngine::report_token(Sequence& sequence, std::vector<RequestOutput>& outputs) {
  const bool finished = sequence.output.finished();
  if (finished || sequence.params.output_kind == OutputKind::kDelta) {
    outputs.push_back(sequence.take_output());
  }
  if (finished && !sequence.pin.empty()) {
    pins_->keep(sequence.pin, sequence.kv, sequence.num_prompt_tokens);
  }
  if (finished) finish(sequence.id);
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
