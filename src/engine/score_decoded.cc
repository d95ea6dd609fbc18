// One request, whose sampled tokens are replaced by those of the text.
#include "engine/score_decoded.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

// The request samples greedily; each sampled token is replaced by the text's before the next step.
std::vector<TokenScore> score_decoded(LlmEngine& engine, const std::vector<int32_t>& tokens,
                                      int64_t num_prompt_tokens, const Solo::OnScored& on_scored) {
  engine.solo().check_idle();
  const auto num_prompt = static_cast<size_t>(num_prompt_tokens);
  SLUICE_CHECK(num_prompt > 0 && num_prompt < tokens.size(), "{} of {}", num_prompt, tokens.size());
  engine.front().check_ids(tokens);
  SamplingParams params{.temperature = 0.0f};
  params.max_tokens = static_cast<int32_t>(tokens.size() - num_prompt);
  params.ignore_eos = true;
  const SequenceId id =
      engine.add_request({tokens.begin(), tokens.begin() + num_prompt_tokens}, params);
  std::vector<TokenScore> scores;
  try {
    bool goes_on = true;
    for (size_t next = num_prompt; next < tokens.size() && goes_on; ++next) {
      const auto has_token = [](const RequestOutput& output) { return !output.token_ids.empty(); };
      while (
          std::ranges::none_of(engine.step(), has_token)) {  // spans of the prompt sample nothing
      }
      scores.push_back(token_score(engine.rank().runner().score_first(tokens[next])));
      goes_on = !on_scored || on_scored(static_cast<int64_t>(scores.size()));
      if (engine.has_unfinished()) engine.replace_last_token(id, tokens[next]);
    }
  } catch (...) {
    engine.drop_request(id);  // an error of on_scored leaves no request in the engine
    throw;
  }
  // Needed after an early end; a request scored to its end is gone already.
  engine.drop_request(id);
  return scores;
}

}  // namespace sluice
