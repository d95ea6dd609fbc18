// SamplingParams: how one request is sampled and when it ends, in vLLM's names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

struct SamplingParams {
  float temperature = 1.0f;  // 0 is greedy
  int32_t top_k = 0;         // 0 or -1 keeps the whole vocabulary
  float top_p = 1.0f;        // in (0, 1]
  float min_p = 0.0f;        // in [0, 1], relative to the most likely token
  // Two requests with the same prompt, parameters and seed give the same tokens, alone or in any
  // batch. Without one, a seed is drawn for the request.
  std::optional<int64_t> seed;

  int32_t max_tokens = 16;              // at least 1
  int32_t min_tokens = 0;               // no end token before this many
  bool ignore_eos = false;              // benchmarks: go on to max_tokens
  std::vector<std::string> stop;        // strings that end the text; not part of it
  std::vector<int32_t> stop_token_ids;  // ids that end it besides the model's own

  std::optional<int32_t> logprobs;  // log-probability of each token and of the n most likely; 0..20
  bool skip_special_tokens = true;  // in the text

  // Errors: kInvalidArgument naming the parameter, its value and its range (NaN included).
  void validate() const;
};

}  // namespace sluice
