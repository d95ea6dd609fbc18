// Decoder: one pass of token rows through all layers, from ids to logits.
//
// Used by engine/runner. One decoder serves all families: it walks the LayerSpecs of the model,
// whose kinds enqueue their own part (model/layer_spec.h). The executor computes attention.
// Everything between two attentions runs by row tiles, so that a long span needs only its residual
// stream and queries for all rows, and scratch for one tile. Thread rule: the engine's thread.
#pragma once

#include <cstdint>

#include "attention/executor.h"
#include "core/arena.h"
#include "core/ids.h"
#include "core/tensor_view.h"
#include "device/collectives.h"
#include "device/device.h"
#include "model/experts/host_experts.h"
#include "model/layer_spec.h"
#include "model/model_config.h"
#include "model/pass_monitor.h"
#include "model/tap.h"
#include "model/weights.h"
#include "state/state_pool.h"

namespace sluice {

// Sizes that the scratch memory is taken for.
struct DecoderLimits {
  int64_t max_rows = 0;        // token rows of one pass
  int64_t max_logit_rows = 0;  // rows of one pass that need logits
  int64_t row_tile = 2048;     // rows per projection and MLP call; larger takes more scratch
  bool has_zones = false;      // rows may lie past the first chunk of dual chunk attention
};

// Made by engine/runner for each pass. All views are device memory.
struct DecoderInput {
  TensorView token_ids;                 // i32 [num_rows]
  TensorView positions;                 // i32 [num_rows], absolute
  TensorView logit_rows;                // i32 [num_logit_rows]: the rows that need logits
  const AttentionPass* pass = nullptr;  // where the pass's KV goes and is; never null
  PassMonitor* monitor = nullptr;       // null: nothing watches the pass
  const StatePool* states = nullptr;    // of a model with states, else null
  DeltaRows state_rows;                 // with `states`: all rows of the pass
  bool records_rows = false;            // with `states`: their records are kept
  bool keeps_rows = false;              // row_logits will be called after the pass
};

class Decoder {
 public:
  // Takes the scratch memory for passes within `limits`. With `collectives` the configuration and
  // the weights are one rank's part (model/shard.h). REQUIRES: `weights` and `collectives` outlive
  // the decoder.
  Decoder(const ModelConfig& config, const Weights& weights, const DecoderLimits& limits,
          Device& device, Stream& stream, Collectives* collectives = nullptr);

  // The weights of experts are in host memory. Called before the first pass. REQUIRES: `experts`
  // outlives the decoder.
  void use_host_experts(HostExperts& experts) { host_experts_ = &experts; }

  // Whether a graph can hold the work of a pass of that many rows: not if layers of experts flow
  // in on another stream, ahead of the pass and beyond it.
  bool is_capturable(int64_t num_rows) const {
    return host_experts_ == nullptr || host_experts_->uses_cache(num_rows);
  }

  // Bytes of device memory that the constructor takes.
  static size_t scratch_bytes(const ModelConfig& config, const DecoderLimits& limits);

  // Enqueues the pass. In stream order, new k and v are then in the cache and the returned logits
  // are ready: f32 [num_logit_rows, vocab], memory of the decoder that the next pass overwrites; of
  // several ranks on the first one alone. A pass without logit rows returns an empty view.
  // Errors: what the monitor throws; the pass is then enqueued in part.
  TensorView forward(Stream& stream, Executor& executor, const DecoderInput& input,
                     TapSink* taps = nullptr);

  // Enqueues the steps over these records again, in all layers with a state.
  void replay(Stream& stream, const StatePool& states, const StateReplay& replay) const;

  // Whether `forward` computes the logits of a pass on all ranks together; row_logits never does.
  bool divides_logits() const { return collectives_ != nullptr; }

  // Enqueues the logits of more rows of the last pass: f32 [n, vocab] for `rows` (i32 [n], device
  // memory, n at most max_logit_rows), in the memory of that pass's logits. May be called again.
  // REQUIRES: that pass ran with keeps_rows.
  TensorView row_logits(Stream& stream, const TensorView& rows);

  // The first `num_rows` rows of the last pass's logits. Valid also if a graph replayed that pass,
  // but not after row_logits.
  TensorView logits(int64_t num_rows) const { return scratch_.logits.rows(0, num_rows); }

 private:
  // Scratch memory of a pass, cut to the actual number of rows. head_dim is the padded one.
  struct Scratch {
    TensorView residual;    // bf16 [max_rows, hidden]
    TensorView q;           // bf16 [max_rows, num_q_heads, head_dim]; attention output replaces it
    TensorView cos_sin;     // f32 [max_rows, 2, head_dim / 2]
    TensorView delta;       // bf16 [tile, hidden]: output of the last block, not yet added
    TensorView normed;      // bf16 [tile, hidden]: norm of residual + delta
    TensorView layer;       // u8: scratch of the mixer, then of the MLP, of any layer, for one tile
    TensorView logit_rows;  // bf16 [max_logit_rows, hidden]
    TensorView logits;      // f32 [max_logit_rows, vocab]
    TensorView logit_part;  // f32 [max_logit_rows, vocab of this rank], of several, flat
    TensorView inv_freq;    // f32 [head_dim / 2]: constant after construction
    ZoneCall zones;         // of a model with dual chunk attention; no_rows is constant, too
  };
  struct Rows;  // of a tile
  struct Pass;  // the arguments of `forward`, and what is derived from them

  static Scratch cut_scratch(Arena& arena, const ModelConfig& config, const DecoderLimits& limits);
  double attention_share(const AttentionPass& pass) const;
  bool has_zones(const AttentionPass& pass) const;
  void write_angles(const Pass& pass) const;
  void embed(const Pass& pass, const Rows& rows);
  const LayerSpec& spec(LayerId layer) const;
  LayerCall call_of(const Pass& pass, LayerId layer) const;
  RowTile tile_of(const Rows& rows) const;
  void begin_layer(const Pass& pass, LayerId layer, const Rows& rows);
  void attend(const Pass& pass, LayerId layer);
  void finish_layer(const Pass& pass, LayerId layer, const Rows& rows);
  void sum_over_ranks(const Pass& pass, const RowTile& tile) const;
  void norm_delta(const Pass& pass, const Rows& rows, const TensorView& weight);
  void norm_again(const Pass& pass, const Rows& rows, const TensorView& weight);
  TensorView project_logits(const Pass& pass);
  TensorView norm_rows(Stream& stream, const TensorView& rows) const;

  ModelConfig config_;
  const Weights& weights_;
  DecoderLimits limits_;
  Collectives* const collectives_;       // null: there is one rank
  HostExperts* host_experts_ = nullptr;  // null: experts are on the device
  PackedWeight head_part_;  // of several: the rows of lm_head that the rank multiplies by
  Buffer memory_;
  Scratch scratch_;
  KvBlocksView write_target_;      // where the current layer's k and v go; one for all its tiles
  float attention_factor_ = 1.0f;  // scale of rope's cosines and sines (YaRN)
};

}  // namespace sluice
