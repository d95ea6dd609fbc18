// Log-probabilities of given texts: as those of a prompt, or by decode steps over the text.
#include <algorithm>
#include <span>

#include "core/error.h"
#include "engine/llm_engine.h"

namespace sluice {
namespace {

// `entry` has the token and the likeliest one.
TokenScore score_of(const std::vector<TokenLogprob>& entry) {
  return {.token_id = entry[0].token_id,
          .logprob = entry[0].logprob,
          .top_token_id = entry[1].token_id,
          .top_logprob = entry[1].logprob};
}

}  // namespace

void LlmEngine::check_idle() const {
  if (!has_unfinished()) return;
  const QueueSizes sizes = queue_sizes();
  fail(ErrorCode::kInvalidArgument,
       "scoring and tracing need the engine alone, but {} requests run and {} wait; call step() "
       "until has_unfinished() is false",
       sizes.num_running, sizes.num_waiting);
}

std::vector<TokenScore> LlmEngine::score(const std::vector<int32_t>& tokens,
                                         const OnScored& on_scored) {
  SamplingParams params;
  params.max_tokens = 1;
  params.prompt_logprobs = 1;
  Sequence sequence(SequenceId(next_id_++), tokens, params, 0, Detokenizer(*tokenizer_));
  const auto expect_nothing = [] { return std::vector<ExpectedSequence>(); };
  run_alone(sequence, [&](const Batch& batch) {
    run_batch(batch, expect_nothing, nullptr);
    // The first token has an entry without a score.
    return !on_scored || on_scored(sequence.num_scored - 1);
  });
  end_alone(sequence);
  std::vector<TokenScore> scores;
  for (const std::vector<TokenLogprob>& entry : sequence.output.prompt_logprobs) {
    if (!entry.empty()) scores.push_back(score_of(entry));
  }
  return scores;
}

// The request samples greedily; each sampled token is replaced by the text's before the next step.
std::vector<TokenScore> LlmEngine::score_decoded(const std::vector<int32_t>& tokens,
                                                 int64_t num_prompt_tokens,
                                                 const OnScored& on_scored) {
  check_idle();
  const auto num_prompt = static_cast<size_t>(num_prompt_tokens);
  SLUICE_CHECK(num_prompt > 0 && num_prompt < tokens.size(), "{} of {}", num_prompt, tokens.size());
  check_ids(tokens);
  SamplingParams params{.temperature = 0.0f};
  params.max_tokens = static_cast<int32_t>(tokens.size() - num_prompt);
  params.ignore_eos = true;
  const SequenceId id = add_request({tokens.begin(), tokens.begin() + num_prompt_tokens}, params);
  std::vector<TokenScore> scores;
  try {
    bool goes_on = true;
    for (size_t next = num_prompt; next < tokens.size() && goes_on; ++next) {
      const auto has_token = [](const RequestOutput& output) { return !output.token_ids.empty(); };
      while (std::ranges::none_of(step(), has_token)) {  // spans of the prompt sample nothing
      }
      scores.push_back(score_of(runner_->score_first(tokens[next])));
      goes_on = !on_scored || on_scored(static_cast<int64_t>(scores.size()));
      if (has_unfinished()) replace_last_token(id, tokens[next]);
    }
  } catch (...) {
    drop_request(id);  // an error of on_scored leaves no request in the engine
    throw;
  }
  // Needed after an early end; a request scored to its end is gone already.
  drop_request(id);
  return scores;
}

}  // namespace sluice
