// Decoder: one pass of token rows through all layers, from ids to logits.
//
// Used by engine/runner. One decoder serves Qwen3, Qwen2 and Llama: the families differ in which
// optional weights are present (model/weights.h), not in code. The executor computes attention;
// everything between two attentions runs by row tiles, so that a span of any length
// needs the residual stream and the queries of all rows, and scratch for one tile. Thread rule: the
// engine's thread.
#pragma once

#include <cstdint>

#include "attention/executor.h"
#include "core/arena.h"
#include "core/ids.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "model/model_config.h"
#include "model/pass_monitor.h"
#include "model/tap.h"
#include "model/weights.h"

namespace sluice {

// What a decoder must be able to hold at once.
struct DecoderLimits {
  int64_t max_rows = 0;        // token rows of one pass
  int64_t max_logit_rows = 0;  // rows whose logits are wanted
  int64_t row_tile = 2048;     // rows that go through projections and MLP at once
};

// Made by engine/runner for each pass. All views are device memory.
struct DecoderInput {
  TensorView token_ids;   // i32 [num_rows]
  TensorView positions;   // i32 [num_rows], absolute
  TensorView logit_rows;  // i32 [num_logit_rows]: the rows that need logits
  const AttentionPass* pass = nullptr;
  PassMonitor* monitor = nullptr;  // null: the pass is enqueued without a stop
};

class Decoder {
 public:
  // Takes the scratch memory for passes within `limits`. REQUIRES: `weights` outlives the decoder.
  Decoder(const ModelConfig& config, const Weights& weights, const DecoderLimits& limits,
          Device& device, Stream& stream);

  // Bytes of device memory that the constructor takes.
  static size_t scratch_bytes(const ModelConfig& config, const DecoderLimits& limits);

  // Enqueues the pass; new k and v are in the cache and `logits` (f32 [num_logit_rows, vocab],
  // memory of the decoder, overwritten by the next pass) is ready in stream order. Errors: what the
  // monitor throws; the pass is then enqueued in part.
  TensorView forward(Stream& stream, Executor& executor, const DecoderInput& input,
                     TapSink* taps = nullptr);

  // The first `num_rows` rows of logits of the last pass, also of one that a graph replayed.
  TensorView logits(int64_t num_rows) const { return scratch_.logits.rows(0, num_rows); }

 private:
  // Scratch of one pass; rows are cut from these by the actual number of rows. head_dim is the
  // padded one.
  struct Scratch {
    TensorView residual;    // bf16 [max_rows, hidden]
    TensorView q;           // bf16 [max_rows, num_q_heads, head_dim]; attention output replaces it
    TensorView cos_sin;     // f32 [max_rows, 2, head_dim / 2]
    TensorView delta;       // bf16 [tile, hidden]: output of the last block, not yet added
    TensorView normed;      // bf16 [tile, hidden]
    TensorView qkv;         // bf16 [tile, qkv width]
    TensorView gate_up;     // bf16 [tile, 2 * intermediate]
    TensorView act;         // bf16 [tile, intermediate]
    TensorView logit_rows;  // bf16 [max_logit_rows, hidden]
    TensorView logits;      // f32 [max_logit_rows, vocab]
    TensorView inv_freq;    // f32 [head_dim / 2]
  };
  // Neighbouring rows that go through projections and MLP together.
  struct RowTile {
    int64_t begin;
    int64_t count;
  };
  struct Pass;  // the arguments of `forward`, handed down

  static Scratch cut_scratch(Arena& arena, const ModelConfig& config, const DecoderLimits& limits);
  double attention_share(const AttentionPass& pass, int64_t num_rows) const;
  void embed(const Pass& pass, const RowTile& tile);
  void begin_layer(const Pass& pass, LayerId layer, const RowTile& tile);
  void attend(const Pass& pass, LayerId layer);
  void finish_layer(const Pass& pass, LayerId layer, const RowTile& tile);
  void norm_delta(const Pass& pass, const RowTile& tile, const TensorView& weight);
  TensorView project_logits(const Pass& pass);

  ModelConfig config_;
  const Weights& weights_;
  DecoderLimits limits_;
  Buffer memory_;
  Scratch scratch_;
  KvBlocksView write_target_;  // of the layer whose k and v are being written
  float attention_factor_ = 1.0f;
};

}  // namespace sluice
