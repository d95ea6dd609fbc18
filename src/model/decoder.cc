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
struct Decoder::Pass {
  Stream& stream;
  Executor& executor;
  const DecoderInput& input;
  TapSink* taps;
  int64_t num_rows;
  int64_t row_tile;

  // Calls `fn(begin, count)` for consecutive tiles of rows.
  template <typename Fn>
  void for_each_tile(Fn fn) const {
    for (int64_t begin = 0; begin < num_rows; begin += row_tile) {
      fn(begin, std::min(row_tile, num_rows - begin));
    }
  }

  void tap(int32_t layer, const char* what, int64_t row_begin, const TensorView& rows) const {
    if (taps == nullptr) return;
    tap_named(fmt::format("layer.{}.{}", layer, what), row_begin, rows);
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
  const int64_t qkv_width = int64_t{config.num_q_heads + 2 * config.num_kv_heads} * config.head_dim;
  Scratch s;
  s.delta = arena.tensor(DType::kBF16, {rows, hidden});
  s.residual = arena.tensor(DType::kBF16, {rows, hidden});
  s.q = arena.tensor(DType::kBF16, {rows, config.num_q_heads, config.head_dim});
  s.cos_sin = arena.tensor(DType::kF32, {rows, 2, config.head_dim / 2});
  s.normed = arena.tensor(DType::kBF16, {tile, hidden});
  s.qkv = arena.tensor(DType::kBF16, {tile, qkv_width});
  s.gate_up = arena.tensor(DType::kBF16, {tile, 2 * int64_t{config.intermediate_size}});
  s.act = arena.tensor(DType::kBF16, {tile, config.intermediate_size});
  s.logit_delta = arena.tensor(DType::kBF16, {limits.max_logit_rows, hidden});
  s.logit_residual = arena.tensor(DType::kBF16, {limits.max_logit_rows, hidden});
  s.logits = arena.tensor(DType::kF32, {limits.max_logit_rows, config.vocab_size});
  s.inv_freq = arena.tensor(DType::kF32, {config.head_dim / 2});
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
  const RopeFrequencies rope = rope_frequencies(config);
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
  const Pass pass{stream, executor, input, taps, num_rows, limits_.row_tile};
  const TensorView delta = scratch_.delta.rows(0, num_rows);
  const TensorView residual = scratch_.residual.rows(0, num_rows);

  executor.begin_pass(*input.pass);
  embedding(stream, {.token_ids = input.token_ids, .table = weights_.embedding(), .out = delta});
  pass.tap_named("embedding", 0, delta);
  stream.fill(residual.bytes(), residual.num_bytes(), 0);
  rope_angles(stream, {.positions = input.positions,
                       .inv_freq = scratch_.inv_freq,
                       .attention_factor = attention_factor_,
                       .cos_sin = scratch_.cos_sin.rows(0, num_rows)});
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    project_qkv(pass, layer);
    attend(pass, layer);
    finish_layer(pass, layer);
  }
  return project_logits(pass);
}

void Decoder::project_qkv(const Pass& pass, int32_t layer) {
  const LayerWeights& w = weights_.layer(layer);
  const KvBlocksView kv = pass.executor.write_target(*pass.input.pass, layer);
  pass.for_each_tile([&](int64_t begin, int64_t count) {
    const TensorView normed = scratch_.normed.rows(0, count);
    const TensorView qkv = scratch_.qkv.rows(0, count);
    const TensorView residual = scratch_.residual.rows(begin, count);
    rms_norm(pass.stream, {.x = scratch_.delta.rows(begin, count),
                           .residual = residual,
                           .weight = w.input_norm,
                           .out = normed,
                           .eps = config_.rms_norm_eps});
    pass.tap(layer, "residual", begin, residual);
    matmul(pass.stream, {.x = normed, .weight = w.qkv, .bias = w.qkv_bias, .out = qkv});
    const TensorView q = scratch_.q.rows(begin, count);
    rope_and_write_kv(pass.stream, {.qkv = qkv,
                                    .q_norm = w.q_norm,
                                    .k_norm = w.k_norm,
                                    .norm_eps = config_.rms_norm_eps,
                                    .cos_sin = scratch_.cos_sin.rows(begin, count),
                                    .q_out = q,
                                    .kv = kv,
                                    .kv_slots = pass.input.pass->kv_slots.rows(begin, count)});
    pass.tap(layer, "q", begin, q);
  });
}

void Decoder::attend(const Pass& pass, int32_t layer) {
  const TensorView q = scratch_.q.rows(0, pass.num_rows);
  const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  pass.executor.attend(pass.stream, *pass.input.pass,
                       {.layer = layer, .q = q, .out = q, .scale = scale});
  pass.tap(layer, "attn_out", 0, q);
}

void Decoder::finish_layer(const Pass& pass, int32_t layer) {
  const LayerWeights& w = weights_.layer(layer);
  const int64_t q_width = int64_t{config_.num_q_heads} * config_.head_dim;
  pass.for_each_tile([&](int64_t begin, int64_t count) {
    const TensorView delta = scratch_.delta.rows(begin, count);
    const TensorView normed = scratch_.normed.rows(0, count);
    const TensorView gate_up = scratch_.gate_up.rows(0, count);
    const TensorView act = scratch_.act.rows(0, count);
    matmul(pass.stream, {.x = scratch_.q.rows(begin, count).reshape({count, q_width}),
                         .weight = w.o,
                         .bias = w.o_bias,
                         .out = delta});
    pass.tap(layer, "attn_proj", begin, delta);
    rms_norm(pass.stream, {.x = delta,
                           .residual = scratch_.residual.rows(begin, count),
                           .weight = w.post_norm,
                           .out = normed,
                           .eps = config_.rms_norm_eps});
    matmul(pass.stream, {.x = normed, .weight = w.gate_up, .out = gate_up});
    swiglu(pass.stream, {.gate_up = gate_up, .out = act});
    matmul(pass.stream, {.x = act, .weight = w.down, .out = delta});
    pass.tap(layer, "mlp_out", begin, delta);
  });
}

TensorView Decoder::project_logits(const Pass& pass) {
  const TensorView rows = pass.input.logit_rows;
  const int64_t count = rows.present() ? rows.dim(0) : 0;
  SLUICE_CHECK(count <= limits_.max_logit_rows, "{} logit rows", count);
  const TensorView logits = scratch_.logits.rows(0, count);
  if (count == 0) return logits;  // a span in the middle of a prompt

  const TensorView delta = scratch_.logit_delta.rows(0, count);
  const TensorView residual = scratch_.logit_residual.rows(0, count);
  gather_rows(pass.stream, {scratch_.delta.rows(0, pass.num_rows), rows, delta});
  gather_rows(pass.stream, {scratch_.residual.rows(0, pass.num_rows), rows, residual});
  rms_norm(pass.stream, {.x = delta,
                         .residual = residual,
                         .weight = weights_.final_norm(),
                         .out = delta,
                         .eps = config_.rms_norm_eps});
  pass.tap_named("final_norm", 0, delta);
  matmul(pass.stream, {.x = delta, .weight = weights_.lm_head(), .out = logits});
  return logits;
}

}  // namespace sluice
