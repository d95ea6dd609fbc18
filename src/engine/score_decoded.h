// score_decoded: log-probabilities of a given text by decode steps over it.
//
// For LLM::score with decode_after: so a policy for decode is measured. Thread rule: the engine's
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/llm_engine.h"
#include "engine/stations/solo.h"

namespace sluice {

// Scores of the tokens after the first `num_prompt_tokens`. Told after each; false ends with those
// so far. REQUIRES: 0 < num_prompt_tokens < tokens.size(). Errors: as Solo::score.
std::vector<TokenScore> score_decoded(LlmEngine& engine, const std::vector<int32_t>& tokens,
                                      int64_t num_prompt_tokens, const Solo::OnScored& on_scored);

}  // namespace sluice
