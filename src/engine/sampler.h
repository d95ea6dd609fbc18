// Sampler: the parameters of each request, as arrays, and the sampled tokens, as structs.
//
// Used by Runner at the end of a step. The drawing itself is the op `sample`; this file only knows
// which request wants what. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "engine/pass_arrays.h"
#include "engine/scheduler.h"
#include "sluice/request_output.h"

namespace sluice {

inline constexpr int32_t kMaxLogprobs = 20;     // as vLLM allows
inline constexpr int32_t kMaxEndTokenIds = 64;  // of the model and of a request, together

// One sampled token. Made by the sampler, read by LlmEngine when it commits the step.
struct SampledToken {
  Sequence* sequence = nullptr;
  int32_t token_id = 0;
  float logprob = 0.0f;                    // natural log, of the raw distribution
  std::vector<TokenLogprob> top_logprobs;  // as many as the request asked for
};

class Sampler {
 public:
  // Takes the memory for `max_seqs` results.
  Sampler(std::vector<int32_t> eos_token_ids, int64_t max_seqs, Device& device);

  static size_t result_bytes(int64_t max_seqs);

  // Forgets the previous pass; called before the first `describe` of a pass.
  void begin_pass();

  // Writes row `index` of the parameter arrays for a sequence that wants a token.
  void describe(const Sequence& sequence, int64_t index, const PassArrays& host);

  // Enqueues sampling from `logits` ([n, vocab]) with the uploaded arrays, and the transfer back.
  void enqueue(Stream& stream, const TensorView& logits, const PassArrays& device);

  // The tokens of the batch's sequences that wanted one. REQUIRES: the stream was waited for.
  std::span<const SampledToken> collect(const Batch& batch);

 private:
  struct Results {
    TensorView token_ids;      // i32 [max_seqs]
    TensorView logprobs;       // f32 [max_seqs]
    TensorView top_token_ids;  // i32 [max_seqs, kMaxLogprobs]
    TensorView top_logprobs;   // f32 [max_seqs, kMaxLogprobs]
  };
  static Results cut(Arena& arena, int64_t max_seqs);

  std::vector<int32_t> eos_token_ids_;
  Buffer host_memory_;
  Buffer device_memory_;
  Results host_;
  Results device_;
  bool wants_top_ = false;  // of the pass being described
  bool wants_suppressed_ = false;
  std::vector<SampledToken> tokens_;
};

}  // namespace sluice
