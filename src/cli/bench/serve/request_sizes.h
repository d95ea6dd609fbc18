// The work of many requests at once: random lengths, random prompts.
//
// Shared by `sluice bench throughput` and `sluice bench serve`, which then do the same work. Thread
// rule: values and free functions.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/llm.h"

namespace sluice::cli {

// Tokens of one request; the answer has exactly output_tokens.
struct RequestSize {
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
};

struct SizeRange {
  int32_t num_requests = 0;
  int32_t least_tokens = 1;  // of a prompt and of an answer
  int32_t most_tokens = 1;
  uint64_t seed = 0;
};
// Random lengths, uniform in the range; the seed fixes them.
std::vector<RequestSize> draw_sizes(const SizeRange& range);

// Of all answers together.
int64_t num_output_tokens(const std::vector<RequestSize>& sizes);
// The tokens of the longest request with its answer, which max_model_len must hold.
int64_t longest_request(const std::vector<RequestSize>& sizes);

// What LLM::generate takes. Prompt i is random_prompt with seed + i. Sampled at a usual
// temperature, since sampling is part of a server's work.
struct GenerateWork {
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
};
GenerateWork make_generate_work(const std::vector<RequestSize>& sizes, int32_t vocab_size,
                                uint64_t seed);

}  // namespace sluice::cli
