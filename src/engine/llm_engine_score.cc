// Log-probabilities of given texts: by prefill with all logits, or by decode steps over the text.
#include <span>

#include "engine/llm_engine.h"
#include "engine/score.h"

namespace sluice {

std::vector<TokenScore> LlmEngine::score(const std::vector<int32_t>& tokens,
                                         const OnScored& on_scored) {
  SamplingParams params;
  params.max_tokens = 1;
  Sequence sequence(SequenceId(next_id_++), tokens, params, 0, Detokenizer(*tokenizer_));
  TraceRecorder no_taps({}, *device_);
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  std::vector<TokenScore> scores;
  run_all_logits(sequence, no_taps, [&](int64_t first_pos, std::span<const float> rows) {
    // The row of a token has the logits of the next token, so the last row of the text is unused.
    for (size_t row = 0; row < rows.size() / vocab; ++row) {
      const size_t next = static_cast<size_t>(first_pos) + row + 1;
      if (next == tokens.size()) break;
      scores.push_back(score_row(rows.subspan(row * vocab, vocab), tokens[next], next));
    }
    return !on_scored || on_scored(static_cast<int64_t>(scores.size()));
  });
  end_all_logits(sequence);
  return scores;
}

// The request samples greedily; each sampled token is replaced by the text's before the next step.
std::vector<TokenScore> LlmEngine::score_decoded(const std::vector<int32_t>& tokens,
                                                 int64_t num_prompt_tokens,
                                                 const OnScored& on_scored) {
  SLUICE_CHECK(!has_unfinished());
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
      while (step().empty()) {  // spans of the prompt sample nothing
      }
      scores.push_back(score_row(runner_->first_logits(), tokens[next], next));
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
