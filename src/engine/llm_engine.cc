// The loop: what is done in a step, in order.
#include "engine/llm_engine.h"

#include "core/error.h"
#include "engine/step_watch.h"

namespace sluice {

SequenceId LlmEngine::add_request(std::vector<int32_t> prompt, const SamplingParams& params,
                                  CancelFlag cancel) {
  auto sequence = stations_.front->make_sequence(std::move(prompt), params, std::move(cancel));
  const SequenceId id = sequence->id;
  stations_.grammars->begin(*sequence);
  stations_.scheduler->add(std::move(sequence));
  return id;
}

SequenceId LlmEngine::add_pin(const std::string& name, std::vector<int32_t> prompt,
                              const SamplingParams& params, CancelFlag cancel) {
  SamplingParams one = params;
  one.max_tokens = 1;
  one.min_tokens = 0;
  one.structured = nullptr;
  auto sequence = stations_.front->make_sequence(std::move(prompt), one, std::move(cancel));
  const SequenceId id = sequence->id;
  sequence->stored.pin = name;
  stations_.scheduler->add(std::move(sequence));
  return id;
}

void LlmEngine::cancel_request(SequenceId id) {
  std::unique_ptr<Sequence> sequence = stations_.scheduler->remove(id);
  if (!sequence) return;
  stations_.drafts->forget(id);
  stations_.grammars->forget(id);
  stations_.answers->cancel(std::move(sequence));
}

// As cancel_request, with a reason.
void LlmEngine::fail_request(SequenceId id, std::string error) {
  std::unique_ptr<Sequence> sequence = stations_.scheduler->remove(id);
  if (!sequence) return;
  stations_.drafts->forget(id);
  stations_.grammars->forget(id);
  stations_.answers->fail(std::move(sequence), std::move(error));
}

void LlmEngine::drop_request(SequenceId id) {
  cancel_request(id);
  stations_.answers->drop_cancelled(id);
}

void LlmEngine::replace_last_token(SequenceId id, int32_t token_id) {
  Sequence* sequence = stations_.scheduler->find_running(id);
  SLUICE_CHECK(sequence != nullptr && sequence->num_generated() > 0, "request {}", id.value);
  SLUICE_CHECK(token_id >= 0 && token_id < config().vocab_size, "token id {}", token_id);
  SLUICE_CHECK(sequence->logit_entries.size() == 0, "request {} has penalties", id.value);
  sequence->tokens.back() = token_id;
  sequence->draft.record.may_draft = false;
}

// What requests did since the last step, such as leaving, is told to routers with this one.
std::vector<RequestOutput> LlmEngine::step(const PassWatch* watch) {
  std::vector<RequestOutput> outputs = advance(watch);
  stations_.kv->tell_routers();
  return outputs;
}

std::vector<RequestOutput> LlmEngine::advance(const PassWatch* watch) {
  std::vector<RequestOutput> outputs;
  take_cancelled(outputs);
  // What a request got from the store is shown as progress of its prompt.
  stations_.kv->tend([&](Sequence& s) { Answers::report_progress(s, outputs); });
  if (!stations_.scheduler->has_unfinished()) return outputs;

  const int64_t begin_ns = stations_.now_ns();
  Batch batch = stations_.scheduler->schedule();
  // Nothing can run before a grammar is compiled, or the store has read or written something.
  if (batch.sequences.empty()) {
    if (outputs.empty() && !stations_.grammars->wait()) stations_.kv->wait();
    return outputs;
  }
  for (const ScheduledSequence& s : batch.sequences) s.sequence->count_pass(begin_ns);
  stations_.drafts->plan(batch);
  stations_.grammars->order_masks(batch);
  stations_.observer->begin_step(batch);
  const auto tokens = run(batch, watch);
  if (tokens) {
    const int64_t end_ns = stations_.now_ns();
    stations_.scheduler->measured(batch, end_ns - begin_ns);
    stations_.drafts->measured(batch, end_ns);
    for (const SampledToken& token : *tokens) {
      if (token.sequence->grammar.gives_token()) token.sequence->count_end(end_ns);
    }
    commit(batch, *tokens, outputs);
  }
  stations_.observer->end_step(batch);
  if (tokens) stations_.reports->add_step(batch, begin_ns, stations_.now_ns());
  if (!tokens) take_cancelled(outputs);
  return outputs;
}

// Ends the requests whose flag is set, and moves the outputs of all cancelled ones to `outputs`.
void LlmEngine::take_cancelled(std::vector<RequestOutput>& outputs) {
  for (const SequenceId id : stations_.scheduler->cancelled_ids()) cancel_request(id);
  for (auto& failure : stations_.grammars->take_failed()) {
    fail_request(failure.id, std::move(failure.error));
  }
  stations_.answers->take_cancelled(outputs);
}

// Empty if the pass was cancelled.
std::optional<std::span<const SampledToken>> LlmEngine::run(const Batch& batch,
                                                            const PassWatch* watch) {
  const StepWatch step_watch(batch, watch);
  step_watch.begin();
  const int64_t min_rows = watch != nullptr ? watch->min_rows : plan().passes.min_watched_rows;
  const bool watched = StepWatch::is_needed(batch, watch, min_rows);
  std::vector<ExpectedSequence> expected;
  if (stations_.rank->prefetches()) expected = stations_.scheduler->expect_next(batch);
  return stations_.rank->run(batch, *stations_.kv, std::move(expected),
                             watched ? &step_watch.pass() : nullptr);
}

// What a pass has computed becomes part of its sequences: rows with valid KV, tokens, outputs,
// ends. A sequence whose masks were late computes the rows of its token again.
void LlmEngine::commit(const Batch& batch, std::span<const SampledToken> tokens,
                       std::vector<RequestOutput>& outputs) {
  if (batch.kind.is_verify) return commit_verified(batch, tokens, outputs);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = batch.sequences[i];
    Sequence& sequence = *scheduled.sequence;
    const int64_t num_repeated = sequence.grammar.gives_token() ? 0 : scheduled.num_sampled();
    if (scheduled.num_rows == num_repeated) continue;
    // A state has seen all rows of its pass or none.
    if (num_repeated > 0 && plan().passes.limits.has_states) continue;
    stations_.kv->commit(sequence, batch.kind, scheduled.num_rows - num_repeated);
    if (batch.kind.is_prefill) {
      stations_.observer->count_mass(sequence, static_cast<int64_t>(i));
    }
    if (!scheduled.wants_token) Answers::report_progress(sequence, outputs);
  }
  for (const SampledToken& token : tokens) {
    if (!token.sequence->grammar.gives_token()) continue;
    stations_.answers->append(token);
    report(*token.sequence, outputs);
  }
}

void LlmEngine::commit_verified(const Batch& batch, std::span<const SampledToken> tokens,
                                std::vector<RequestOutput>& outputs) {
  for (const ScheduledSequence& scheduled : batch.sequences) {
    const auto count = static_cast<size_t>(scheduled.num_sampled());
    Sequence& sequence = *scheduled.sequence;
    if (sequence.grammar.gives_token()) {
      commit_draft(sequence, tokens.first(count));
      report(sequence, outputs);
    } else {
      sequence.draft.tokens.clear();
      stations_.kv->drop_drafts(sequence);
    }
    tokens = tokens.subspan(count);
  }
}

// Commits the rows of accepted drafts and the one after them, as that many decode steps would: what
// a token ends, ends there.
void LlmEngine::commit_draft(Sequence& sequence, std::span<const SampledToken> tokens) {
  int64_t num_accepted = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    SampledToken token = tokens[i];
    const bool accepted = stations_.drafts->accepts(sequence, i, token);
    stations_.kv->commit(sequence, PassKind::verify(), 1);
    stations_.answers->append(token);
    num_accepted += accepted ? 1 : 0;
    if (!accepted || sequence.answer.output.finished()) break;
  }
  stations_.drafts->judged(sequence, num_accepted);
  stations_.kv->drop_drafts(sequence);
}

// After the tokens of a step: hands them out, and ends the sequence if the last one did.
void LlmEngine::report(Sequence& sequence, std::vector<RequestOutput>& outputs) {
  if (!Answers::report(sequence, outputs)) return;
  stations_.kv->ended(sequence);
  stations_.drafts->forget(sequence.id);
  stations_.grammars->forget(sequence.id);
  stations_.scheduler->remove(sequence.id);
}

}  // namespace sluice
