// The order of ops: embedding; per layer norm, qkv, rope and KV write, attention, o, norm, MLP;
// then logits.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/rope_scaling.h"
#include "ops/rows/activation.h"
#include "ops/rows/norm.h"
#include "ops/rows/rope.h"

namespace sluice {
namespace {

// An absent view means none: a span in the middle of a prompt.
int64_t num_logit_rows(const DecoderInput& input) {
  return input.logit_rows.present() ? input.logit_rows.dim(0) : 0;
}

}  // namespace

struct Decoder::Pass {
  Stream& stream;
  Executor& executor;
  const DecoderInput& input;
  TapSink* taps;
  int64_t num_rows;
  int64_t row_tile;
  int32_t num_layers;
  double attention_share;  // attention's fraction of a layer's arithmetic, for progress

  // row_tile bounds every tile; only the last may be shorter.
  // Calls `fn(tile)` for consecutive tiles of rows.
  template <typename Fn>
  void for_each_tile(Fn fn) const {
    for (int64_t begin = 0; begin < num_rows; begin += row_tile) {
      fn(RowTile{begin, std::min(row_tile, num_rows - begin)});
    }
  }

  // `done` counts enqueued layers: 1.5 means one layer and half of the next.
  void report(double done) const {
    if (input.monitor != nullptr) input.monitor->on_part(stream, done / num_layers);
  }

  // The name is built only when a sink is present: formatting costs more than the branch.
  void tap(LayerId layer, const char* what, int64_t row_begin, const TensorView& rows) const {
    if (taps == nullptr) return;
    tap_named(fmt::format("layer.{}.{}", layer.value, what), row_begin, rows);
  }
  void tap_named(const std::string& name, int64_t row_begin, const TensorView& rows) const {
    if (taps != nullptr && taps->wants(name)) taps->tap(stream, name, row_begin, rows);
  }
};

// Cuts all scratch tensors from `arena`. Used twice, to plan and to take, so the sizes agree.
Decoder::Scratch Decoder::cut_scratch(Arena& arena, const ModelConfig& config,
                                      const DecoderLimits& limits) {
  const int64_t rows = limits.max_rows;
  const int64_t tile = std::min(limits.row_tile, rows);
  const int64_t hidden = config.hidden_size;
  const int64_t head_dim = config.padded_head_dim();
  const int64_t qkv_width = int64_t{config.num_q_heads + 2 * config.num_kv_heads} * head_dim;
  Scratch s;
  s.residual = arena.tensor(DType::kBF16, {rows, hidden});
  s.q = arena.tensor(DType::kBF16, {rows, config.num_q_heads, head_dim});
  s.cos_sin = arena.tensor(DType::kF32, {rows, 2, head_dim / 2});
  s.delta = arena.tensor(DType::kBF16, {tile, hidden});
  s.normed = arena.tensor(DType::kBF16, {tile, hidden});
  s.qkv = arena.tensor(DType::kBF16, {tile, qkv_width});
  s.gate_up = arena.tensor(DType::kBF16, {tile, 2 * int64_t{config.intermediate_size}});
  s.act = arena.tensor(DType::kBF16, {tile, config.intermediate_size});
  s.logit_rows = arena.tensor(DType::kBF16, {limits.max_logit_rows, hidden});
  s.logits = arena.tensor(DType::kF32, {limits.max_logit_rows, config.vocab_size});
  s.inv_freq = arena.tensor(DType::kF32, {head_dim / 2});
  return s;
}

size_t Decoder::scratch_bytes(const ModelConfig& config, const DecoderLimits& limits) {
  Arena plan;
  cut_scratch(plan, config, limits);
  return plan.used_bytes();
}

Decoder::Decoder(const ModelConfig& config, const Weights& weights, const DecoderLimits& limits,
                 Device& device, Stream& stream)
    : config_(config),
      weights_(weights),
      limits_(limits),
      memory_(device.allocate(scratch_bytes(config, limits), MemoryKind::kDevice)) {
  Arena arena(memory_.data(), memory_.size_bytes());
  scratch_ = cut_scratch(arena, config, limits);
  RopeFrequencies rope = rope_frequencies(config);
  // Padding channels get frequency 0: angle 0, no rotation.
  rope.inv_freq.resize(static_cast<size_t>(config.padded_head_dim() / 2));
  attention_factor_ = rope.attention_factor;
  SLUICE_CHECK(rope.inv_freq.size() * sizeof(float) == scratch_.inv_freq.num_bytes());
  stream.copy({.dst = scratch_.inv_freq.bytes(),
               .src = reinterpret_cast<const std::byte*>(rope.inv_freq.data()),
               .num_bytes = scratch_.inv_freq.num_bytes()});
  stream.synchronize();  // the copy reads `rope`, which ends with this function
}

TensorView Decoder::forward(Stream& stream, Executor& executor, const DecoderInput& input,
                            TapSink* taps) {
  const int64_t num_rows = input.token_ids.dim(0);
  SLUICE_CHECK(num_rows > 0 && num_rows <= limits_.max_rows, "{} rows", num_rows);
  const Pass pass{stream,
                  executor,
                  input,
                  taps,
                  num_rows,
                  limits_.row_tile,
                  config_.num_layers,
                  attention_share(*input.pass, num_rows)};
  rope_angles(stream, {.positions = input.positions,
                       .inv_freq = scratch_.inv_freq,
                       .attention_factor = attention_factor_,
                       .cos_sin = scratch_.cos_sin.rows(0, num_rows)});
  pass.for_each_tile([&](const RowTile& tile) {
    embed(pass, tile);
    begin_layer(pass, LayerId(0), tile);
    pass.report(0);
  });
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    attend(pass, LayerId(layer));
    pass.report(layer + pass.attention_share);
    // One loop does the end of this layer and the start of the next: `delta` has one tile's rows,
    // and the next layer's first norm must read it before the next tile overwrites it.
    pass.for_each_tile([&](const RowTile& tile) {
      finish_layer(pass, LayerId(layer), tile);
      if (layer + 1 < config_.num_layers) {
        begin_layer(pass, LayerId(layer + 1), tile);
      } else if (num_logit_rows(input) > 0 || input.keeps_rows) {
        // Only the sum in `residual` is used; row_logits norms the few rows it needs.
        norm_delta(pass, tile, weights_.final_norm());
      }
      const double done =
          static_cast<double>(tile.begin + tile.count) / static_cast<double>(num_rows);
      pass.report(layer + pass.attention_share + (1 - pass.attention_share) * done);
    });
  }
  return project_logits(pass);
}

// Attention's share of a layer's multiply-adds; only progress reports depend on it.
//
//   attention = 2 * q_width * context * rows       (q k^T and p v)
//   products  = hidden * (2 * q_width + kv_width + 3 * intermediate) * rows
//
// `context` is the mean over the rows of the longest sequence, taken for all sequences of the pass.
double Decoder::attention_share(const AttentionPass& pass, int64_t num_rows) const {
  const double q_width = static_cast<double>(config_.num_q_heads) * config_.head_dim;
  const double kv_width = 2.0 * config_.num_kv_heads * config_.head_dim;
  const double mean_context = pass.batch.max_kv_tokens - pass.batch.max_rows / 2.0;
  const double attention = 2 * q_width * mean_context * static_cast<double>(num_rows);
  const double products = config_.hidden_size *
                          (2 * q_width + kv_width + 3.0 * config_.intermediate_size) *
                          static_cast<double>(num_rows);
  return attention / (attention + products);
}

// Starts the residual stream: residual = 0, delta = embedding. The first norm then adds them like
// any other delta.
void Decoder::embed(const Pass& pass, const RowTile& tile) {
  const TensorView delta = scratch_.delta.rows(0, tile.count);
  const TensorView residual = scratch_.residual.rows(tile.begin, tile.count);
  embedding(pass.stream, {.token_ids = pass.input.token_ids.rows(tile.begin, tile.count),
                          .table = weights_.embedding(),
                          .out = delta});
  pass.tap_named("embedding", tile.begin, delta);
  pass.stream.fill(residual.bytes(), residual.num_bytes(), 0);
}

// The part of a layer before attention, for one tile: norm, q k v, rope, KV write. Queries go to
// the buffer of all rows.
void Decoder::begin_layer(const Pass& pass, LayerId layer, const RowTile& tile) {
  const LayerWeights& w = weights_.layer(layer);
  // Once per layer: with offload this call takes one of the two stage buffers.
  if (tile.begin == 0) write_target_ = pass.executor.write_target(*pass.input.pass, layer);
  const TensorView normed = scratch_.normed.rows(0, tile.count);
  const TensorView qkv = scratch_.qkv.rows(0, tile.count);
  const TensorView residual = scratch_.residual.rows(tile.begin, tile.count);
  norm_delta(pass, tile, w.input_norm);
  pass.tap(layer, "residual", tile.begin, residual);
  matmul(pass.stream, {.x = normed, .weight = w.qkv, .bias = w.qkv_bias, .out = qkv});
  const TensorView q = scratch_.q.rows(tile.begin, tile.count);
  rope_and_write_kv(pass.stream,
                    {.qkv = qkv,
                     .q_norm = w.q_norm,
                     .k_norm = w.k_norm,
                     .norm_eps = config_.rms_norm_eps,
                     .norm_channels = config_.head_dim,
                     .cos_sin = scratch_.cos_sin.rows(tile.begin, tile.count),
                     .q_out = q,
                     .kv = write_target_,
                     .kv_rows = pass.input.pass->kv_rows.rows(tile.begin, tile.count)});
  pass.tap(layer, "q", tile.begin, q);
}

// Attention of all rows. The output overwrites the queries, so no second buffer of that size
// exists. The scale uses the model's head_dim: padding channels add nothing to a score.
void Decoder::attend(const Pass& pass, LayerId layer) {
  const TensorView q = scratch_.q.rows(0, pass.num_rows);
  const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  pass.executor.attend(pass.stream, *pass.input.pass,
                       {.layer = layer, .q = q, .out = q, .scale = scale});
  pass.tap(layer, "attn_out", 0, q);
}

// The part of a layer after attention, for one tile: output projection, norm, MLP. Leaves the MLP's
// output in `delta`; the next norm adds it.
void Decoder::finish_layer(const Pass& pass, LayerId layer, const RowTile& tile) {
  const LayerWeights& w = weights_.layer(layer);
  const int64_t q_width = int64_t{config_.num_q_heads} * config_.padded_head_dim();
  const TensorView delta = scratch_.delta.rows(0, tile.count);
  const TensorView normed = scratch_.normed.rows(0, tile.count);
  const TensorView gate_up = scratch_.gate_up.rows(0, tile.count);
  const TensorView act = scratch_.act.rows(0, tile.count);
  matmul(pass.stream, {.x = scratch_.q.rows(tile.begin, tile.count).reshape({tile.count, q_width}),
                       .weight = w.o,
                       .bias = w.o_bias,
                       .out = delta});
  pass.tap(layer, "attn_proj", tile.begin, delta);
  norm_delta(pass, tile, w.post_norm);
  gated_product(pass.stream, {.x = normed, .weight = w.gate_up, .gate_up = gate_up, .out = act});
  matmul(pass.stream, {.x = act, .weight = w.down, .out = delta});
  pass.tap(layer, "mlp_out", tile.begin, delta);
}

// residual += delta, then normed = RMSNorm(residual) * weight, for one tile.
void Decoder::norm_delta(const Pass& pass, const RowTile& tile, const TensorView& weight) {
  rms_norm(pass.stream, {.x = scratch_.delta.rows(0, tile.count),
                         .residual = scratch_.residual.rows(tile.begin, tile.count),
                         .weight = weight,
                         .out = scratch_.normed.rows(0, tile.count),
                         .eps = config_.rms_norm_eps});
}

// A span in the middle of a prompt has no logits.
TensorView Decoder::project_logits(const Pass& pass) {
  if (num_logit_rows(pass.input) == 0) return scratch_.logits.rows(0, 0);
  const TensorView logits = row_logits(pass.stream, pass.input.logit_rows);
  pass.tap_named("final_norm", 0, scratch_.logit_rows.rows(0, logits.dim(0)));
  return logits;
}

// Gathers rows from the residual stream, norms them and applies the output head.
TensorView Decoder::row_logits(Stream& stream, const TensorView& rows) {
  const int64_t count = rows.dim(0);
  SLUICE_CHECK(count <= limits_.max_logit_rows, "{} logit rows", count);
  const TensorView logits = scratch_.logits.rows(0, count);
  const TensorView normed = scratch_.logit_rows.rows(0, count);
  gather_rows(stream, {scratch_.residual, rows, normed});
  rms_norm(stream, {.x = normed,
                    .residual = {},
                    .weight = weights_.final_norm(),
                    .out = normed,
                    .eps = config_.rms_norm_eps});
  matmul(stream, {.x = normed, .weight = weights_.lm_head(), .out = logits});
  return logits;
}

}  // namespace sluice
