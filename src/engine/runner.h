// Runner: turns a scheduled batch into device work and brings the sampled tokens back.
//
// Used by LlmEngine once per step: describe the pass (PassArrays), one transfer, the decoder, the
// sampler, one transfer back. All its memory is taken at construction; a step allocates none of the
// device's. With `fixed_decode_shapes`, decode steps are padded to one of few shapes and replayed
// as graphs (decode_graphs.h). Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/executor.h"
#include "engine/decode_graphs.h"
#include "engine/pass_arrays.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "kv/offload_engine.h"
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
    Executor& executor;
    OffloadEngine* offload = nullptr;  // null: KV is resident
    int32_t block_tokens = 0;
    std::vector<int32_t> eos_token_ids;
    // Pads decode steps: for devices where another number of rows is another kernel, whose sums
    // round differently, so that graphs and steps without them have the same bits.
    bool fixed_decode_shapes = false;
    int64_t max_decode_graphs = 0;  // 0: no graphs; REQUIRES: fixed_decode_shapes otherwise
  };
  Runner(const Parts& parts, const PassLimits& limits);

  // Bytes of device memory (and as many of pinned memory) that the constructor takes.
  static size_t memory_bytes(const PassLimits& limits);

  // Runs the batch and returns one token for each sequence that wants one, in batch order. The
  // result is valid until the next call. Returns when all is done.
  // `expected` is whom the next step will probably have: their history may be loaded meanwhile.
  // REQUIRES: the batch's blocks are reserved and their rows not yet committed.
  // Errors: kDevice or kUnsupported from the pass; the engine's KV is then in doubt.
  std::span<const SampledToken> run(const Batch& batch, std::span<const ExpectedSequence> expected);

  // Runs rows [kv.num_tokens(), + num_rows) of one sequence and returns the logits of each row
  // (f32 [num_rows, vocab], host), with taps. For alignment, not for speed.
  // REQUIRES: num_rows <= max_seqs, since there is room for that many rows of logits.
  std::vector<float> run_with_all_logits(Sequence& sequence, int64_t num_rows, TapSink* taps);

  const DecodeGraphs& graphs() const { return graphs_; }

 private:
  // Host side of a step.
  void describe(const Batch& batch, int64_t num_logit_rows);
  void place(const Batch& batch);
  void place_resident(const Sequence& sequence);
  void place_staged(Sequence& sequence, int64_t num_rows);
  void place_in_tail(Sequence& sequence);
  bool pads(const Batch& batch) const;
  PassLimits size_of(const Batch& batch, int64_t num_logit_rows) const;
  void pad_size(PassLimits& size);
  void cut_arrays(const PassLimits& size);
  void write_sequence(const ScheduledSequence& scheduled, int64_t index, int64_t row_begin);
  void write_rows(const ScheduledSequence& scheduled, int64_t index, int64_t row_begin);
  std::span<const SequenceBlock> sealed_blocks(const Sequence& sequence, int64_t num_tokens) const;
  bool is_in_place(const Batch& batch) const;
  bool asks_for_places(const Batch& batch) const;
  void add_history(const Sequence& sequence, Phase phase);
  void write_history(int64_t index);
  void write_block_ids(const Sequence& sequence, int64_t index);
  void write_block_places(const Sequence& sequence, int64_t index);
  std::vector<HistoryBlocks> history_of(const Sequence& sequence, int64_t num_tokens) const;
  void expect_next(std::span<const ExpectedSequence> expected);
  void write_block_table();
  void write_padding(int64_t num_seqs);

  // Device side; what is enqueued depends on shapes alone.
  void view_arrays();
  template <typename Enqueue>
  void run_pass(Enqueue enqueue);
  void enqueue();
  TensorView forward(TapSink* taps);

  Parts parts_;
  PassLimits limits_;
  Buffer host_memory_;
  Buffer device_memory_;
  PassArrays host_;
  PassArrays device_;
  Sampler sampler_;
  DecodeGraphs graphs_;

  // Of the pass being described.
  AttentionPass pass_;
  // Per sequence: the blocks that hold its own tokens, and the position where they begin.
  struct Place {
    int64_t begin_pos = 0;
    std::vector<int32_t> blocks;
  };
  std::vector<Place> places_;
  // Per sequence, when KV is offloaded and neither gathered nor in place.
  std::vector<std::vector<HistoryBlocks>> histories_;
  int32_t num_staged_ = 0;
  int64_t num_run_places_ = 0;
  PassLimits size_;         // of its arrays, padding included
  size_t array_bytes_ = 0;  // that all arrays take on each side
  int64_t num_logit_rows_ = 0;
};

}  // namespace sluice
