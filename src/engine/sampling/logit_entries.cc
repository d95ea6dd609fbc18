// Repetition counts prompt and output, presence and frequency the output alone, as in vLLM.
#include "engine/sampling/logit_entries.h"

namespace sluice {

LogitEntries::LogitEntries(const SamplingParams& params, std::span<const int32_t> prompt)
    : repetition_(params.repetition_penalty),
      frequency_(params.frequency_penalty),
      presence_(params.presence_penalty) {
  for (const auto& [id, bias] : params.logit_bias) biases_[place_of(id)] = bias;
  if (repetition_ == 1.0f) return;
  for (const int32_t id : prompt) repetitions_[place_of(id)] = repetition_;
}

void LogitEntries::append(int32_t token_id) {
  if (repetition_ == 1.0f && frequency_ == 0.0 && presence_ == 0.0) return;
  const size_t place = place_of(token_id);
  repetitions_[place] = repetition_;
  ++counts_[place];
  penalties_[place] = static_cast<float>(frequency_ * counts_[place] + presence_);
}

size_t LogitEntries::place_of(int32_t token_id) {
  const auto [it, is_new] = places_.try_emplace(token_id, ids_.size());
  if (is_new) {
    ids_.push_back(token_id);
    biases_.push_back(0.0f);
    repetitions_.push_back(1.0f);
    penalties_.push_back(0.0f);
    counts_.push_back(0);
  }
  return it->second;
}

}  // namespace sluice
