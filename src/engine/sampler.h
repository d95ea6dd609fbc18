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
#include "model/model_config.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"

namespace sluice {

static_assert(kMaxEndTokenIds >= kMaxEosIds);

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
  // The same for a row whose token is not read: greedy, which never fails on finite logits.
  static void describe_padding(int64_t index, const PassArrays& host);

  // What the rows described so far want; the work of `enqueue` depends on nothing else but shapes.
  bool wants_top() const { return wants_top_; }
  bool wants_suppressed() const { return wants_suppressed_; }

  // Enqueues sampling from `logits` ([n, vocab]) with the uploaded arrays, and the transfer back.
  void enqueue(Stream& stream, const TensorView& logits, const PassArrays& device);

  // The tokens of the batch's sequences that wanted one, from the first rows of `num_rows` that
  // were sampled. REQUIRES: the stream was waited for.
  std::span<const SampledToken> collect(const Batch& batch, int64_t num_rows);

 private:
  // Cut to the rows of each pass on both sides, as PassArrays are.
  struct Results {
    TensorView token_ids;      // i32 [num_rows]
    TensorView logprobs;       // f32 [num_rows]
    TensorView top_token_ids;  // i32 [num_rows, kMaxLogprobs], if wanted
    TensorView top_logprobs;   // f32 [num_rows, kMaxLogprobs], if wanted
  };
  static Results cut(Arena& arena, int64_t num_rows, bool with_top);

  std::vector<int32_t> eos_token_ids_;
  Buffer host_memory_;
  Buffer device_memory_;
  bool wants_top_ = false;  // of the pass being described
  bool wants_suppressed_ = false;
  std::vector<SampledToken> tokens_;
};

}  // namespace sluice
