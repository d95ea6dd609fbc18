#include "engine/sampling/sampling_defaults.h"

namespace sluice {

SamplingParams sampling_defaults(const GenerationDefaults& defaults) {
  SamplingParams params;
  if (defaults.temperature) params.temperature = static_cast<float>(*defaults.temperature);
  // do_sample false means greedy, even if a temperature is given.
  if (defaults.do_sample && !*defaults.do_sample) params.temperature = 0;
  if (defaults.top_k && *defaults.top_k > 0) params.top_k = static_cast<int32_t>(*defaults.top_k);
  if (defaults.top_p) params.top_p = static_cast<float>(*defaults.top_p);
  if (defaults.min_p) params.min_p = static_cast<float>(*defaults.min_p);
  if (defaults.repetition_penalty) {
    params.repetition_penalty = static_cast<float>(*defaults.repetition_penalty);
  }
  return params;
}

}  // namespace sluice
