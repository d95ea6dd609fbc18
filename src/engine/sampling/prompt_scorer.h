// PromptScorer: the log-probabilities of given tokens: those of prompts
// (SamplingParams::prompt_logprobs), and of texts that decode steps go through (LLM::score).
//
// Used by Runner after a pass, while the decoder still has the pass's rows. Tiles of rows
// go through the output head and the op `sample`, which scores given tokens; only a few numbers a
// token come to the host. A row depends on no other, so tiles and passes of any size give the same
// bits where products of any height do. Cost: one wait of the host for each tile; nothing in passes
// without such prompts. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/arena.h"
#include "device/device.h"
#include "engine/schedule/scheduler.h"
#include "model/decoder.h"
#include "ops/sample.h"

namespace sluice {

class PromptScorer {
 public:
  // `max_rows`: rows of a tile, at most the decoder's max_logit_rows. Takes pinned and device
  // memory.
  PromptScorer(int64_t max_rows, Device& device);

  // Bytes that the constructor takes of each kind of memory.
  static size_t memory_bytes(int64_t max_rows);

  // Whether some sequence of the batch has prompt tokens to score.
  static bool wanted(const Batch& batch);

  // Scores the prompt tokens that follow the rows of the pass, unless they have a score already,
  // and appends them to the outputs of their sequences. False if should_cancel, which is asked
  // after each tile, ended it; the scores so far are kept. Order: after the decoder's forward of
  // this batch with keeps_rows, on the same stream. Waits for the stream. Errors: those of
  // `sample`.
  bool run(Stream& stream, Decoder& decoder, const Batch& batch,
           const std::function<bool()>& should_cancel);

  // The score of `token_id` in one row of logits (f32 [1, vocab], device memory), and the likeliest
  // token: two entries. Waits for the stream.
  std::vector<TokenLogprob> score(Stream& stream, const TensorView& logits, int32_t token_id);

 private:
  // A row of the pass and the prompt token after it.
  struct Row {
    Sequence* sequence;
    int32_t index;  // in the pass
    int32_t token_id;
  };
  struct Inputs {
    TensorView rows;         // i32 [max_rows]
    TensorView given;        // i32 [max_rows]
    TensorView sample_rows;  // SampleRow [max_rows], which given tokens do not use
  };
  struct Results {
    TensorView token_ids;      // i32 [n]
    TensorView logprobs;       // f32 [n]
    TensorView top_token_ids;  // i32 [n, kMaxLogprobs]; absent unless a row asks for them
    TensorView top_logprobs;   // f32 [n, kMaxLogprobs]; likewise
  };
  static Inputs cut_inputs(Arena& arena, int64_t max_rows);
  static Results cut_results(Arena& arena, int64_t num_rows, bool with_top);

  void list_rows(const Batch& batch);
  void score_tile(Stream& stream, Decoder& decoder, size_t first, size_t count);
  // Scores `num_rows` given tokens, which host_memory_ has, in the rows of logits_of(rows); the
  // results are in host_memory_.
  using LogitsOf = std::function<TensorView(const TensorView& rows)>;
  Results score_given(Stream& stream, int64_t num_rows, const LogitsOf& logits_of);
  static std::vector<TokenLogprob> entry_of(const Results& host, int64_t index, int32_t num_top);

  int64_t max_rows_;
  Buffer host_memory_;
  Buffer device_memory_;
  bool wants_top_ = false;  // of the pass
  std::vector<Row> rows_;   // of the pass; keeps its capacity
};

}  // namespace sluice
