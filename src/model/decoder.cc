// The pass: embedding, then per layer (norm, qkv, rope + KV write, attention, o, norm, MLP),
// logits.
#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/rope_scaling.h"
#include "ops/activation.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace sluice {
namespace {

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
  double attention_share;  // of the arithmetic of a layer

  // Calls `fn(tile)` for consecutive tiles of rows.
  template <typename Fn>
  void for_each_tile(Fn fn) const {
    for (int64_t begin = 0; begin < num_rows; begin += row_tile) {
      fn(RowTile{begin, std::min(row_tile, num_rows - begin)});
    }
  }

  // `done` layers of the pass are enqueued, 1.5 for one and the half of the next.
  void report(double done) const {
    if (input.monitor != nullptr) input.monitor->on_part(stream, done / num_layers);
  }

  void tap(LayerId layer, const char* what, int64_t row_begin, const TensorView& rows) const {
    if (taps == nullptr) return;
    tap_named(fmt::format("layer.{}.{}", layer.value, what), row_begin, rows);
  }
  void tap_named(const std::string& name, int64_t row_begin, const TensorView& rows) const {
    if (taps != nullptr && taps->wants(name)) taps->tap(stream, name, row_begin, rows);
  }
};

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
  rope.inv_freq.resize(static_cast<size_t>(config.padded_head_dim() / 2));  // zeros turn nothing
  attention_factor_ = rope.attention_factor;
  SLUICE_CHECK(rope.inv_freq.size() * sizeof(float) == scratch_.inv_freq.num_bytes());
  stream.copy({.dst = scratch_.inv_freq.bytes(),
               .src = reinterpret_cast<const std::byte*>(rope.inv_freq.data()),
               .num_bytes = scratch_.inv_freq.num_bytes()});
  stream.synchronize();  // `rope` dies here
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
    // A tile goes on to the next layer's attention at once: no other tile needs its delta.
    pass.for_each_tile([&](const RowTile& tile) {
      finish_layer(pass, LayerId(layer), tile);
      if (layer + 1 < config_.num_layers) {
        begin_layer(pass, LayerId(layer + 1), tile);
      } else if (num_logit_rows(input) > 0) {
        norm_delta(pass, tile, weights_.final_norm());  // for the sum alone
      }
      const double done =
          static_cast<double>(tile.begin + tile.count) / static_cast<double>(num_rows);
      pass.report(layer + pass.attention_share + (1 - pass.attention_share) * done);
    });
  }
  return project_logits(pass);
}

// Of the arithmetic of a layer, for progress alone: attention over everything before each row (with
// several sequences: as if all were the longest) beside the matrix products.
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

// The first delta is the embedding, added to nothing.
void Decoder::embed(const Pass& pass, const RowTile& tile) {
  const TensorView delta = scratch_.delta.rows(0, tile.count);
  const TensorView residual = scratch_.residual.rows(tile.begin, tile.count);
  embedding(pass.stream, {.token_ids = pass.input.token_ids.rows(tile.begin, tile.count),
                          .table = weights_.embedding(),
                          .out = delta});
  pass.tap_named("embedding", tile.begin, delta);
  pass.stream.fill(residual.bytes(), residual.num_bytes(), 0);
}

void Decoder::begin_layer(const Pass& pass, LayerId layer, const RowTile& tile) {
  const LayerWeights& w = weights_.layer(layer);
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

void Decoder::attend(const Pass& pass, LayerId layer) {
  const TensorView q = scratch_.q.rows(0, pass.num_rows);
  const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  pass.executor.attend(pass.stream, *pass.input.pass,
                       {.layer = layer, .q = q, .out = q, .scale = scale});
  pass.tap(layer, "attn_out", 0, q);
}

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

// Adds a tile's delta to the residual stream; `normed` is then the norm of the sum.
void Decoder::norm_delta(const Pass& pass, const RowTile& tile, const TensorView& weight) {
  rms_norm(pass.stream, {.x = scratch_.delta.rows(0, tile.count),
                         .residual = scratch_.residual.rows(tile.begin, tile.count),
                         .weight = weight,
                         .out = scratch_.normed.rows(0, tile.count),
                         .eps = config_.rms_norm_eps});
}

TensorView Decoder::project_logits(const Pass& pass) {
  const TensorView rows = pass.input.logit_rows;
  const int64_t count = num_logit_rows(pass.input);
  SLUICE_CHECK(count <= limits_.max_logit_rows, "{} logit rows", count);
  const TensorView logits = scratch_.logits.rows(0, count);
  if (count == 0) return logits;  // a span in the middle of a prompt

  const TensorView normed = scratch_.logit_rows.rows(0, count);
  gather_rows(pass.stream, {scratch_.residual.rows(0, pass.num_rows), rows, normed});
  rms_norm(pass.stream, {.x = normed,
                         .residual = {},
                         .weight = weights_.final_norm(),
                         .out = normed,
                         .eps = config_.rms_norm_eps});
  pass.tap_named("final_norm", 0, normed);
  matmul(pass.stream, {.x = normed, .weight = weights_.lm_head(), .out = logits});
  return logits;
}

}  // namespace sluice
