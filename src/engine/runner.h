// Runner: turns a scheduled batch into device work and brings the sampled tokens back.
//
// Used by LlmEngine once per step: describe the pass (PassArrays, and the arrays of the Residency
// beside them), one transfer, the decoder, the sampler, one transfer back. All its memory is taken
// at construction; a step allocates none of the device's. With `fixed_decode_shapes`, decode steps
// are padded to one of few shapes and replayed as graphs (decode_graphs.h). Thread rule: the
// engine's thread.
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
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "model/decoder.h"
#include "model/tap.h"

namespace sluice {

class Runner {
 public:
  // What the runner stands on; all of it outlives the runner.
  struct Parts {
    Device& device;
    Stream& compute;  // all work of a step is enqueued here
    Decoder& decoder;
    Residency& residency;
    int32_t block_tokens = 0;
    std::vector<int32_t> eos_token_ids;
    // Pads decode steps: for devices where another number of rows is another kernel, whose sums
    // round differently, so that graphs and steps without them have the same bits.
    bool fixed_decode_shapes = false;
    int64_t max_decode_graphs = 0;  // 0: no graphs; REQUIRES: fixed_decode_shapes otherwise
  };
  Runner(const Parts& parts, const PassLimits& limits);

  // Bytes of device memory (and as many of pinned memory) that the constructor takes, with
  // `residency_bytes` for the arrays of the residency.
  static size_t memory_bytes(const PassLimits& limits, size_t residency_bytes);

  // Runs the batch and returns one token for each sequence that wants one, in batch order. The
  // result is valid until the next call. Returns when all is done.
  // `expect_next` may be asked for the next step's sequences, whose KV is fetched meanwhile.
  // `watch`, if there is one, sees the pass from inside and may cancel it: nothing is returned
  // then, no stream has work left, and what the pass has written belongs to reserved blocks of its
  // sequences, which may be released or computed again. REQUIRES: no watch in a decode step; the
  // batch's blocks are reserved and their rows not yet committed. Errors: kDevice or kUnsupported
  // from the pass; the engine's KV is then in doubt.
  std::optional<std::span<const SampledToken>> run(const Batch& batch,
                                                   const Residency::ExpectNext& expect_next,
                                                   const PassWatch* watch = nullptr);

  // Runs rows [kv.num_tokens(), + num_rows) of one sequence and returns the logits of each row
  // (f32 [num_rows, vocab], host), with taps. For alignment, not for speed.
  // REQUIRES: num_rows <= max_seqs, since there is room for that many rows of logits.
  std::vector<float> run_with_all_logits(Sequence& sequence, int64_t num_rows, TapSink* taps);

  // The logits from which the last pass drew the token of its first sequence (f32 [vocab], host).
  // REQUIRES: that pass was run, and it drew one.
  std::vector<float> first_logits();

  const DecodeGraphs& graphs() const { return graphs_; }

 private:
  // Host side of a step.
  void describe(const Batch& batch, int64_t num_logit_rows);
  void list_rows(const Batch& batch);
  bool pads(const Batch& batch) const;
  PassShape shape_of(const Batch& batch);
  void cut_arrays(const PassShape& shape, int64_t num_logit_rows);
  void write_sequence(const ScheduledSequence& scheduled, int64_t index, int64_t row_begin);
  void write_padding(int64_t num_seqs, const PassShape& shape);

  // Device side; what is enqueued depends on shapes alone.
  template <typename Enqueue>
  void run_pass(Enqueue enqueue);
  void enqueue_batch(const Batch& batch);
  std::vector<float> to_host(const TensorView& logits);
  void enqueue();
  TensorView forward(TapSink* taps);

  Parts parts_;
  PassLimits limits_;
  Buffer host_memory_;
  Buffer device_memory_;
  Sampler sampler_;
  DecodeGraphs graphs_;
  PassPacer pacer_;

  // Of the pass being run.
  AttentionPass pass_;
  std::vector<SequenceRows> rows_;
  PassPlan plan_;
  PassArrays host_;
  PassArrays device_;
  size_t array_bytes_ = 0;  // that all arrays take on each side
  int64_t num_logit_rows_ = 0;
  PassMonitor* monitor_ = nullptr;  // the pacer, or null
};

}  // namespace sluice
