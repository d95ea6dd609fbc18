// Sampler: converts request parameters to arrays, and sampled rows to structs.
//
// Used by Runner at the end of a step. The op `sample` does the arithmetic; this class only knows
// which request needs which parameters. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "engine/pass_arrays.h"
#include "engine/sampling/adjustment_arrays.h"
#include "engine/sampling/token_masks.h"
#include "engine/schedule/scheduler.h"
#include "model/model_config.h"
#include "ops/sample.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"

namespace sluice {

// A model's own end tokens always fit a row of PassArrays::suppressed.
static_assert(kMaxEndTokenIds >= kMaxEosIds);

// One sampled token. Made by the sampler, read by LlmEngine when it commits the step.
struct SampledToken {
  Sequence* sequence = nullptr;
  int32_t token_id = 0;
  float logprob = 0.0f;                    // natural log, before temperature and truncation
  std::vector<TokenLogprob> top_logprobs;  // params.logprobs entries, likeliest first
};

class Sampler {
 public:
  // Takes pinned and device memory for `max_rows` results, and that of AdjustmentArrays and
  // TokenMasks.
  Sampler(std::vector<int32_t> eos_token_ids, int64_t max_rows, int64_t vocab_size, Device& device);

  // Bytes that the constructor takes of each kind of memory for results.
  static size_t result_bytes(int64_t max_rows);

  // Forgets the rows of the previous pass. REQUIRES: called before the first `describe` of a pass.
  void begin_pass();

  // Writes element `index` of sample_rows and suppressed for a sequence that samples a token, or
  // the token that would be sampled after `num_drafts` more tokens.
  // REQUIRES: `index` is the number of rows described before; the sequence has these drafts.
  void describe(const Sequence& sequence, int64_t num_drafts, int64_t index,
                const PassArrays& host);
  // The same for a padding row, whose token is not read. Greedy, which never fails on finite
  // logits.
  void describe_padding(int64_t index, const PassArrays& host);
  // Called after the last row.
  void end_describe();

  // Whether any row described so far returns likeliest tokens, has suppressed ids, or has
  // penalties, biases or allowed ids. Beside shapes, these alone determine the launches of
  // `enqueue`, unless the pass takes parts.
  bool wants_top() const { return wants_top_; }
  bool wants_suppressed() const { return wants_suppressed_; }
  bool wants_adjustments() const { return adjustments_.any() || masks_.any(); }
  // Whether some row's mask is made while the decoder computes: then `take_masks` comes before
  // `enqueue`, which is not a part of a graph.
  bool awaits_masks() const { return !awaited_.empty(); }
  // Whether the adjustments of the rows are too many to be sampled at once.
  bool takes_parts() const { return first_part_ < adjustments_.num_rows(); }

  // Waits for the masks of the described rows and writes them. With `may_be_late` it waits a moment
  // after the stream's work is done at most, since other sequences wait too, else as long as a mask
  // may take; rows without a mask then draw from all tokens, and their orders are late.
  void take_masks(Stream& stream, bool may_be_late);

  // Enqueues sampling from `logits` (f32 [n, vocab]) with the device's arrays, and the transfer of
  // the results to the host.
  void enqueue(Stream& stream, const TensorView& logits, const PassArrays& device);

  // The tokens that the batch's sequences sample (ScheduledSequence::num_sampled), from the first
  // of `num_rows` sampled rows; valid until the next call. REQUIRES: the stream was synchronized.
  std::span<const SampledToken> collect(const Batch& batch, int64_t num_rows);

 private:
  // Cut to the rows of each pass on both sides, as PassArrays are.
  struct Results {
    TensorView token_ids;      // i32 [num_rows]
    TensorView logprobs;       // f32 [num_rows]
    TensorView top_token_ids;  // i32 [num_rows, kMaxLogprobs]; empty unless wants_top
    TensorView top_logprobs;   // f32 [num_rows, kMaxLogprobs]; empty unless wants_top
  };
  static Results cut(Arena& arena, int64_t num_rows, bool with_top);
  static SampledToken read_row(const Results& host, int64_t row, Sequence* sequence);
  // A row whose mask is made meanwhile.
  struct AwaitedMask {
    std::shared_ptr<MaskOrder> order;
    int64_t num_drafts = 0;
    int32_t mask = 0;
  };
  int32_t add_mask(const Sequence& sequence, int64_t num_drafts);
  bool are_made_while_computing(Stream& stream);
  // Samples with adjustments and masks, in as many parts as the arrays of adjustments need.
  void sample_parts(Stream& stream, const SampleArgs& all);

  std::vector<int32_t> eos_token_ids_;
  Buffer host_memory_;
  Buffer device_memory_;
  std::unique_ptr<Event> computed_;  // the logits of a pass whose rows await their masks
  bool wants_top_ = false;           // of the pass being described
  bool wants_suppressed_ = false;
  AdjustmentArrays adjustments_;
  TokenMasks masks_;
  std::vector<AwaitedMask> awaited_;
  int64_t first_part_ = 0;            // rows whose adjustments are in the arrays after end_describe
  std::vector<SampledToken> tokens_;  // the result of `collect`; keeps its capacity
};

}  // namespace sluice
