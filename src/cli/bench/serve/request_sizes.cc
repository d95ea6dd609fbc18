#include "cli/bench/serve/request_sizes.h"

#include <algorithm>

#include "cli/bench/measure.h"

namespace sluice::cli {

// Two draws for each request, from one sequence.
std::vector<RequestSize> draw_sizes(const SizeRange& range) {
  const int32_t span = range.most_tokens - range.least_tokens + 1;
  const std::vector<int32_t> draws =
      random_prompt(2 * int64_t{range.num_requests}, span, range.seed);
  std::vector<RequestSize> sizes;
  for (size_t i = 0; i < draws.size(); i += 2) {
    sizes.push_back({range.least_tokens + draws[i], range.least_tokens + draws[i + 1]});
  }
  return sizes;
}

int64_t num_output_tokens(const std::vector<RequestSize>& sizes) {
  int64_t num_tokens = 0;
  for (const RequestSize& size : sizes) num_tokens += size.output_tokens;
  return num_tokens;
}

int64_t longest_request(const std::vector<RequestSize>& sizes) {
  int64_t longest = 0;
  for (const RequestSize& size : sizes) {
    longest = std::max(longest, int64_t{size.prompt_tokens} + size.output_tokens);
  }
  return longest;
}

// Prompts of different requests share nothing, so no prefix cache can help.
GenerateWork make_generate_work(const std::vector<RequestSize>& sizes, int32_t vocab_size,
                                uint64_t seed) {
  GenerateWork work;
  for (const RequestSize& size : sizes) {
    work.prompts.emplace_back(
        random_prompt(size.prompt_tokens, vocab_size, seed + work.prompts.size()));
    work.params.push_back(
        {.temperature = 0.6f, .max_tokens = size.output_tokens, .ignore_eos = true});
  }
  return work;
}

}  // namespace sluice::cli
