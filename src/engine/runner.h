// Runner: runs a pass on the device, and returns the tokens that are sampled from it.
//
// Rank calls it once per pass. A pass: fill the pass's arrays (PassArrays and those of the
// Residency), one transfer, the decoder, the sampler, one transfer back. All memory is taken at
// construction; a step allocates no device memory. With `fixed_decode_shapes`, decode steps are
// padded to one of few shapes and replayed as graphs (decode_graphs.h). Thread rule: the engine's
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/residency.h"
#include "engine/decode_graphs.h"
#include "engine/pass_arrays.h"
#include "engine/pass_pacer.h"
#include "engine/sampling/prompt_scorer.h"
#include "engine/sampling/sampler.h"
#include "engine/schedule/scheduler.h"
#include "engine/step_message.h"
#include "kv/kv_tables.h"
#include "model/decoder.h"
#include "model/tap.h"
#include "state/state_pool.h"

namespace sluice {

class Runner {
 public:
  // References and settings of a runner; all referenced objects outlive it.
  struct Parts {
    Device& device;
    Stream& compute;  // all work of a step is enqueued here
    Decoder& decoder;
    Residency& residency;
    StatePool* states = nullptr;  // of a model with states, else null
    int32_t block_tokens = 0;
    int64_t vocab_size = 0;
    std::vector<int32_t> eos_token_ids;  // the model's; suppressed until min_tokens are generated
    // Pads decode steps. For devices on which another number of rows selects another kernel, whose
    // sums round differently: steps with and without graphs then have the same shapes and bits.
    bool fixed_decode_shapes = false;
    int64_t max_decode_graphs = 0;  // 0: no graphs; REQUIRES: fixed_decode_shapes otherwise
  };
  Runner(const Parts& parts, const PassLimits& limits);

  // Bytes that the constructor takes: this many of device memory and this many of pinned memory,
  // without those of AdjustmentArrays and TokenMasks. `residency_bytes` is the part for the arrays
  // of the residency.
  static size_t memory_bytes(const PassLimits& limits, size_t residency_bytes);

  // A pass: what is computed, and whose tables it reads.
  struct Pass {
    const StepMessage& message;
    const KvTables& tables;
  };
  // Runs the pass of the batch and returns one token for each sequence with wants_token, and of a
  // verify pass one more for each draft token, in batch order, valid until the next call. Blocks
  // until the pass is done. `watch`: if not null, observes the pass and may cancel it. The result
  // of a cancelled pass is empty; no stream then has work left, and the pass has written only to
  // reserved blocks of its sequences, which may be released or computed again.
  // REQUIRES: the message was made from the batch; no watch in a decode step; the batch's blocks
  // are reserved and its rows not yet committed. Errors: kDevice or kUnsupported from the pass; the
  // contents of the KV cache are then undefined.
  std::optional<std::span<const SampledToken>> run(const Pass& pass, const Batch& batch,
                                                   const PassWatch* watch = nullptr);
  // Runs a pass without a batch, on a rank that samples nothing, and returns the logits of its
  // sampled rows: f32 [message.num_sampled(), vocab] in host memory.
  std::vector<float> replay(const Pass& pass);

  // The same on a rank after the first, which gets its logits. Returns when the pass is done.
  void follow(const Pass& pass);

  // Runs a prefill pass of one sequence, which samples nothing, and returns the logits of every
  // row: f32 [num_rows, vocab] in host memory. Taps of the pass go to `taps`. Slow: used for
  // traces. REQUIRES: num_rows <= max_seqs, since the logits buffer has that many rows.
  std::vector<float> run_with_all_logits(const Pass& pass, TapSink* taps);

  // The score of `token_id` where the last pass sampled the token of its first sequence, and the
  // likeliest token there. REQUIRES: that pass sampled one, and scored no prompt.
  std::vector<TokenLogprob> score_first(int32_t token_id);

  const DecodeGraphs& graphs() const { return graphs_; }

 private:
  // Host side of a step: fills the pinned arrays.
  void describe(const Pass& pass, int64_t num_logit_rows);
  void list_rows(const Pass& pass);
  bool pads(const StepMessage& message) const;
  // The numbers of rows and sequences of the pass, padded in decode if `pads`.
  PassShape shape_of(const StepMessage& message);
  void cut_arrays(const PassShape& shape, int64_t num_logit_rows);
  // Writes the entries of sequence `index`, whose first row is `row_begin`.
  void write_sequence(const StepMessage& message, size_t index, int64_t row_begin);
  void write_slots(const StepMessage& message, size_t index, int64_t row_begin);
  void write_padding(int64_t num_seqs, const PassShape& shape);
  // The parameters of the rows that are sampled, padding included.
  void describe_draws(const Batch& batch);

  // Device side. What is enqueued depends on shapes alone, so that a graph can replay it.
  template <typename Enqueue>
  void run_pass(Enqueue enqueue);
  void enqueue_message(const Pass& pass);
  // Enqueues the pass, as a graph where its shape allows one.
  void enqueue_pass(const StepMessage& message);
  void prefetch(const Pass& pass);
  // False if the watch cancelled.
  bool score_prompts(const Batch& batch, const PassWatch* watch);
  // Copies logits to the host and waits for them.
  std::vector<float> to_host(const TensorView& logits);
  // Enqueues the pass op by op: upload, decoder, and the sampler if `draws_in_pass_`.
  void enqueue();
  TensorView forward(TapSink* taps);

  Parts parts_;
  PassLimits limits_;
  Buffer host_memory_;    // pinned; the arrays of one pass
  Buffer device_memory_;  // their copy
  Sampler sampler_;
  PromptScorer scorer_;
  DecodeGraphs graphs_;
  PassPacer pacer_;

  // State of the current pass.
  AttentionPass pass_;
  std::vector<SequenceRows> rows_;  // what the residency plans with
  std::vector<PrefillSpan> spans_;  // of pass_; empty in decode
  std::vector<ExpectedRows> expected_;
  PassPlan plan_;  // its answer
  PassArrays host_;
  PassArrays device_;
  size_t array_bytes_ = 0;          // of all arrays, on each side
  int64_t num_logit_rows_ = 0;      // rows to sample, padding included
  PassMonitor* monitor_ = nullptr;  // the pacer, or null
  bool scores_prompts_ = false;     // tokens of some prompt are scored after the pass
  bool draws_in_pass_ = false;      // no row waits for its mask
  bool records_rows_ = false;       // some rows may not be committed; of a model with states
};

}  // namespace sluice
