// Prefill passes of one sequence, which samples nothing.
#include "engine/stations/solo.h"

#include <algorithm>
#include <span>

#include "core/error.h"

namespace sluice {

TokenScore token_score(const std::vector<TokenLogprob>& entry) {
  return {.token_id = entry[0].token_id,
          .logprob = entry[0].logprob,
          .top_token_id = entry[1].token_id,
          .top_logprob = entry[1].logprob};
}

void Solo::check_idle() const {
  if (!stations_.scheduler.has_unfinished() && !stations_.answers.has_cancelled()) return;
  const QueueSizes sizes = stations_.scheduler.queue_sizes();
  fail(ErrorCode::kInvalidArgument,
       "scoring and tracing need the engine alone, but {} requests run and {} wait; call step() "
       "until has_unfinished() is false",
       sizes.num_running, sizes.num_waiting);
}

std::vector<TokenScore> Solo::score(const std::vector<int32_t>& tokens, const OnScored& on_scored) {
  SamplingParams params;
  params.max_tokens = 1;
  params.prompt_logprobs = 1;
  Sequence sequence = make_sequence(tokens, params);
  run(sequence, [&](const Batch& batch) {
    stations_.rank.run(batch, stations_.kv);
    // The first token has an entry without a score.
    return !on_scored || on_scored(sequence.num_scored - 1);
  });
  stations_.kv.release(sequence);
  std::vector<TokenScore> scores;
  for (const std::vector<TokenLogprob>& entry : sequence.answer.output.prompt_logprobs) {
    if (!entry.empty()) scores.push_back(token_score(entry));
  }
  return scores;
}

// Rows of one pass that returns all logits of a text: the logits buffer has max_num_seqs rows, and
// the next span must begin at a multiple of span_align_tokens.
int64_t Solo::max_rows(int64_t num_tokens) const {
  const EnginePlan& plan = stations_.front.plan();
  const Policy& policy = stations_.rank.policies().prefill();
  const int64_t align = plan.passes.scheduler.span_align_tokens;
  const int64_t max_with_history = plan.passes.scheduler.max_rows_with_history;
  const int64_t rows = max_with_history > 0
                           ? std::min(plan.passes.limits.max_seqs, max_with_history)
                           : plan.passes.limits.max_seqs;
  if (rows >= num_tokens) return num_tokens;
  if (policy.prefill_scope_tokens() == kPromptScopeTokens) {
    fail(ErrorCode::kInvalidArgument,
         "max_num_seqs is {}, but with sparse_segment_tokens 0 a text of {} tokens is one pass, "
         "which returns logits of max_num_seqs rows; raise it to {}, or take segments",
         plan.passes.limits.max_seqs, num_tokens, num_tokens);
  }
  if (rows < align) {
    fail(ErrorCode::kInvalidArgument,
         "max_num_seqs is {}, but passes that return all logits have at least {} rows: the least "
         "common multiple of block_size ({}), if KV is offloaded, and of what the sparse policy "
         "selects for together ({}); raise the first",
         plan.passes.limits.max_seqs, align, plan.kv_layout.block.block_tokens,
         policy.prefill_scope_tokens());
  }
  // state_align_tokens is 1 or a multiple of `align`; a pass that is shorter cuts chunks of states.
  const int64_t state_align = std::max(plan.passes.scheduler.state_align_tokens, align);
  return rows < state_align ? rows / align * align : rows / state_align * state_align;
}

// A tile of rows at a time: the logits of a thousand rows of a vocabulary of 151K are 600 MB. All
// positions are computed, also those in the prefix cache.
void Solo::run(Sequence& sequence, const RunPass& run_pass) {
  check_idle();
  stations_.front.check(sequence.tokens, sequence.params);
  const int64_t most = max_rows(sequence.num_tokens());
  stations_.kv.begin_alone(sequence);
  try {
    bool goes_on = true;
    while (goes_on && sequence.num_pending() > 0) {
      const int64_t num_rows = std::min(sequence.num_pending(), most);
      const Batch batch{
          .kind = PassKind::prefill(),
          .sequences = {{.sequence = &sequence, .num_rows = num_rows, .wants_token = false}}};
      stations_.observer.begin_step(batch);
      goes_on = run_pass(batch);
      stations_.kv.commit_alone(sequence, num_rows);
      stations_.observer.count_mass(sequence, 0);
      stations_.observer.end_step(batch);
    }
  } catch (...) {
    stations_.kv.release(sequence);  // after an error of the caller the engine holds no block of it
    throw;
  }
}

Sequence Solo::make_sequence(const std::vector<int32_t>& tokens, const SamplingParams& params) {
  return Sequence(stations_.front.take_id(), tokens, params, /*seed=*/0,
                  Detokenizer(stations_.front.tokenizer()));
}

// One prefill with taps; `keep` gets the logits of each pass. False if `watch` cancelled.
bool Solo::run_traced(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                      const PassWatch& watch, const KeepLogits& keep) {
  if (const int32_t num_ranks = stations_.front.plan().num_ranks;
      num_ranks > 1 && !recorder.wants_nothing()) {
    fail(ErrorCode::kUnsupported,
         "taps need all heads on one rank, but tensor_parallel_size is {}; take 1, or no taps",
         num_ranks);
  }
  SamplingParams params;
  params.max_tokens = 1;
  Sequence sequence = make_sequence(tokens, params);
  bool cancelled = false;
  run(sequence, [&](const Batch& batch) {
    const StepMessage& message = stations_.rank.describe(batch, stations_.kv, {});
    keep(stations_.rank.runner().run_with_all_logits({.message = message, .tables = stations_.kv},
                                                     &recorder));
    if (watch.on_progress) watch.on_progress(sequence.kv.num_tokens() + batch.num_rows());
    cancelled = watch.should_cancel && watch.should_cancel();
    return !cancelled;
  });
  try {
    if (!cancelled) tap_kv(sequence, recorder);
  } catch (...) {
    stations_.kv.release(sequence);
    throw;
  }
  stations_.kv.release(sequence);
  return !cancelled;
}

Solo::Logits Solo::trace(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                         const PassWatch& watch) {
  Logits logits;
  const bool is_whole = run_traced(tokens, recorder, watch, [&](std::span<const float> rows) {
    logits.insert(logits.end(), rows.begin(), rows.end());
  });
  if (!is_whole) logits.clear();
  return logits;
}

bool Solo::record_taps(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                       const PassWatch& watch) {
  return run_traced(tokens, recorder, watch, [](std::span<const float>) {});
}

// Taps of k and v are read from the blocks after the passes, since no buffer holds them per layer.
void Solo::tap_kv(const Sequence& sequence, TraceRecorder& recorder) {
  const Residency& residency = stations_.rank.residency();
  stations_.rank.residency().synchronize();
  const auto bytes_of = [&](LayerId layer, const SequenceBlock& block) {
    return residency.block_bytes(sequence.id, block, layer);
  };
  recorder.tap_kv(stations_.rank.compute(), stations_.front.config().layers,
                  stations_.front.plan().kv_layout.block, sequence.kv, bytes_of);
}

}  // namespace sluice
