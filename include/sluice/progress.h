// How far loading and generating are.
//
// Passed to the callbacks of LLM's constructor, LLM::generate and LLM::trace. Thread rule: values
// only; the callbacks run on the thread that calls the LLM.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// How far loading is; passed to the callback of LLM's constructor.
struct LoadProgress {
  // In this order; pinning when KV is offloaded. The tokenizer is read in one go: share 0, then 1.
  enum class Stage { kTokenizer, kPinning, kWeights };
  Stage stage = Stage::kWeights;
  double share = 0;        // of the stage, 0 to 1
  size_t total_bytes = 0;  // kPinning: of the host tier
};

// How far a batch is; passed to GenerateOptions::on_progress after every step, and many times
// within a long prefill pass. Tokens of requests that run along are counted, too, but no more of a
// prompt is done than there is.
struct Progress {
  int64_t num_requests = 0;
  int64_t num_finished = 0;
  int64_t num_prompt_tokens_total = 0;  // of all requests
  int64_t num_prompt_tokens_done = 0;   // within a pass: its tokens times the share that is done
  int64_t num_generated_tokens = 0;
};

}  // namespace sluice
