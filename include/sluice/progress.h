// LoadProgress, Progress and PromptProgress: how much of loading, of generating and of one prompt
// is done.
//
// Passed to the callbacks of LLM's constructor, LLM::generate, LLM::trace and LLM::step. Thread
// rule: values only; the callbacks run on the thread that calls the LLM.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// Passed to the callback of LLM's constructor.
struct LoadProgress {
  // In this order; kPinning only if KV is offloaded. The tokenizer is read in one step: share 0,
  // then 1.
  enum class Stage { kTokenizer, kPinning, kWeights };
  Stage stage = Stage::kWeights;
  double share = 0;        // of the stage, 0 to 1
  size_t total_bytes = 0;  // kPinning: of the host tier
};

// Passed to GenerateOptions::on_progress after every step, and many times within a long prefill
// pass. Tokens of requests of add_request that run in the same steps are counted too;
// num_prompt_tokens_done never exceeds num_prompt_tokens_total.
struct Progress {
  int64_t num_requests = 0;
  int64_t num_finished = 0;
  int64_t num_prompt_tokens_total = 0;  // of all requests
  int64_t num_prompt_tokens_done = 0;   // within a pass: its tokens times the share that is done
  int64_t num_generated_tokens = 0;
};

// Passed to StepOptions::on_progress within a prefill pass, about twice for each layer: of each
// prompt that the pass computes, the tokens before the pass, and those of its span times the share
// of the pass that is done. Never falls.
struct PromptProgress {
  int64_t request_id = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;  // of num_done: found by prefix caching
  int64_t num_stored_tokens = 0;  // of num_cached_tokens: read from the KV store
  int64_t num_done = 0;
};

}  // namespace sluice
