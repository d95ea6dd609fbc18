// logprob(id) = logit[id] - (max + log(sum(exp(logit - max)))), on the host.
#include "engine/score.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sluice {

TokenScore score_row(std::span<const float> logits, int32_t token_id, size_t position) {
  SLUICE_CHECK(token_id >= 0 && static_cast<size_t>(token_id) < logits.size(), "id {}", token_id);
  const auto top = std::max_element(logits.begin(), logits.end());
  const double largest = *top;
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_total = largest + std::log(sum);
  // A NaN makes the sum NaN, even if max_element skipped it.
  if (!std::isfinite(log_total)) {
    fail(ErrorCode::kModel,
         "the logits for token {} of the text have NaN, infinity or no finite number; the model's "
         "weights are broken, or its activations leave the range of bf16",
         position);
  }
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_total);
  };
  return {.token_id = token_id,
          .logprob = logprob(logits[static_cast<size_t>(token_id)]),
          .top_token_id = static_cast<int32_t>(top - logits.begin()),
          .top_logprob = logprob(*top)};
}

}  // namespace sluice
