#include "model/layers/attention.h"

#include <cmath>

#include "attention/executor.h"
#include "ops/delta/delta.h"
#include "ops/rows/rope.h"

namespace sluice {
namespace {

// bf16 [num_rows, (num_q_heads + 2 * num_kv_heads) * padded]
TensorView cut_qkv(Arena& arena, const Attention& attention, int64_t num_rows) {
  const int64_t num_heads = int64_t{attention.num_q_heads} + 2 * int64_t{attention.num_kv_heads};
  return arena.tensor(DType::kBF16, {num_rows, num_heads * attention.padded_head_dim()});
}

// bf16 [num_rows, num_q_heads * padded]. Of `finish`, in the place of qkv, which `begin` needs.
TensorView cut_gate(Arena& arena, const Attention& attention, int64_t num_rows) {
  const int64_t width = int64_t{attention.num_q_heads} * attention.padded_head_dim();
  return arena.tensor(DType::kBF16, {num_rows, width});
}

}  // namespace

void Attention::describe(std::map<std::string, std::string>& fields) const {
  fields["num_q_heads"] = std::to_string(num_q_heads);
  fields["num_kv_heads"] = std::to_string(num_kv_heads);
  fields["head_dim"] = std::to_string(head_dim);
  fields["qkv_bias"] = std::to_string(qkv_bias);
  fields["o_bias"] = std::to_string(o_bias);
  fields["qk_norm"] = std::to_string(qk_norm);
  if (output_gate) fields["output_gate"] = "1";
  if (norm_offset != 0.0f) fields["qk_norm_offset"] = std::to_string(norm_offset);
  if (rotary_dim != 0) fields["rotary_dim"] = std::to_string(rotary_dim);
}

// With an output gate q_proj has, for each head, the rows of q and then those of its gate, which
// multiplies the output and so has its channels.
void Attention::lay_out_q(WeightLayout& layout, const std::string& name, int64_t hidden,
                          Weights& w) const {
  if (!output_gate) {
    layout.add_head_rows(name + "q_proj.weight", w.qkv, 0, num_q_heads, rotated_padding(),
                         shard.rows(q_width()));
    return;
  }
  w.gate = layout.matrix(int64_t{num_q_heads} * padded_head_dim(), hidden, {name + "q_proj"},
                         padding().present() ? 1 : head_dim);
  WeightLayout::RowRange range{.name = name + "q_proj.weight",
                               .num_tensor_rows = shard.num_ranks * 2 * q_width(),
                               .from = shard.rank * 2 * q_width(),
                               .num_rows = head_dim};
  for (int32_t head = 0; head < num_q_heads; ++head) {
    layout.add_head_range(range, w.qkv, head, rotated_padding());
    range.from += head_dim;
    layout.add_head_range(range, w.gate, head, padding());
    range.from += head_dim;
  }
}

// q, k and v share one matrix, so one product computes all three. Where channels have another order
// than in the file (HeadPadding), blocks of scales become scales of rows.
Attention::Weights Attention::lay_out(WeightLayout& layout, const std::string& prefix,
                                      int64_t hidden) const {
  const std::string name = prefix + "self_attn.";
  const HeadPadding heads = padding();
  const int64_t q_rows = int64_t{num_q_heads} * heads.padded_head_dim;
  const int64_t kv_rows = int64_t{num_kv_heads} * heads.padded_head_dim;
  const int64_t part_rows = output_gate ? int64_t{head_dim} : kv_rows;
  Weights w;
  w.qkv = layout.matrix(q_rows + 2 * kv_rows, hidden,
                        {name + "q_proj", name + "k_proj", name + "v_proj"},
                        rotated_padding().present() ? 1 : part_rows);
  lay_out_q(layout, name, hidden, w);
  const TensorSlice kv_slice = kv_shard.rows(int64_t{num_kv_heads} * head_dim);
  layout.add_head_rows(name + "k_proj.weight", w.qkv, num_q_heads, num_kv_heads, rotated_padding(),
                       kv_slice);
  layout.add_head_rows(name + "v_proj.weight", w.qkv, num_q_heads + num_kv_heads, num_kv_heads,
                       heads, kv_slice);
  if (qkv_bias) lay_out_qkv_bias(layout, name, w);
  if (qk_norm) {
    w.q_norm = layout.vector(heads.padded_head_dim);
    layout.add_head_vector(name + "q_norm.weight", w.q_norm, rotated_padding(), 1 - norm_offset);
    w.k_norm = layout.vector(heads.padded_head_dim);
    layout.add_head_vector(name + "k_norm.weight", w.k_norm, rotated_padding(), 1 - norm_offset);
  }
  w.o = layout.matrix(hidden, q_rows, {name + "o_proj"});
  layout.add_head_columns(name + "o_proj.weight", w.o, heads, shard.columns(q_width()));
  if (o_bias) {
    w.o_bias = layout.vector(hidden);
    layout.add_vector(name + "o_proj.bias", w.o_bias);
  }
  return w;
}

void Attention::lay_out_qkv_bias(WeightLayout& layout, const std::string& name, Weights& w) const {
  const HeadPadding heads = padding();
  const int64_t q_rows = int64_t{num_q_heads} * heads.padded_head_dim;
  const int64_t kv_rows = int64_t{num_kv_heads} * heads.padded_head_dim;
  const TensorSlice kv_slice = kv_shard.rows(int64_t{num_kv_heads} * head_dim);
  w.qkv_bias = layout.vector(q_rows + 2 * kv_rows);
  layout.add_head_vector(name + "q_proj.bias", w.qkv_bias.rows(0, q_rows), heads, 0,
                         shard.rows(q_width()));
  layout.add_head_vector(name + "k_proj.bias", w.qkv_bias.rows(q_rows, kv_rows), heads, 0,
                         kv_slice);
  layout.add_head_vector(name + "v_proj.bias", w.qkv_bias.rows(q_rows + kv_rows, kv_rows), heads, 0,
                         kv_slice);
}

size_t Attention::scratch_bytes(int64_t num_rows, int64_t /*hidden*/) const {
  Arena plan;
  cut_qkv(plan, *this, num_rows);  // never narrower than the gate
  return plan.used_bytes();
}

void Attention::begin(const LayerCall& call, const RowTile& tile, const Weights& weights) const {
  Arena arena = tile.scratch;
  const TensorView qkv = cut_qkv(arena, *this, tile.count);
  const TensorView q = call.q.rows(tile.begin, tile.count);
  matmul(call.stream, {.x = tile.x, .weight = weights.qkv, .bias = weights.qkv_bias, .out = qkv});
  rope_and_write_kv(call.stream, {.qkv = qkv,
                                  .q_norm = weights.q_norm,
                                  .k_norm = weights.k_norm,
                                  .norm_eps = call.norm_eps,
                                  .norm_offset = norm_offset,
                                  .norm_channels = head_dim,
                                  .cos_sin = call.cos_sin.rows(tile.begin, tile.count),
                                  .q_out = q,
                                  .kv = call.kv,
                                  .kv_rows = call.pass.kv_rows.rows(tile.begin, tile.count)});
  if (call.zones.present()) rotate_zones(call, tile, weights, qkv);
  call.tap("q", tile.begin, q);
}

// Queries once more for each zone. The keys are written already: they have one rotation.
void Attention::rotate_zones(const LayerCall& call, const RowTile& tile, const Weights& weights,
                             const TensorView& qkv) const {
  const ZoneCall& zones = call.zones;
  const auto rotate = [&](const TensorView& cos_sin, const TensorView& q) {
    rope_and_write_kv(call.stream, {.qkv = qkv,
                                    .q_norm = weights.q_norm,
                                    .k_norm = weights.k_norm,
                                    .norm_eps = call.norm_eps,
                                    .norm_offset = norm_offset,
                                    .norm_channels = head_dim,
                                    .cos_sin = cos_sin.rows(tile.begin, tile.count),
                                    .q_out = q.rows(tile.begin, tile.count),
                                    .kv = call.kv,
                                    .kv_rows = zones.no_rows.rows(tile.begin, tile.count)});
  };
  rotate(zones.own, call.q);
  rotate(zones.before, zones.queries.before);
  rotate(zones.far, zones.queries.far);
}

// The scale uses the model's head_dim: padding channels add nothing to a score.
void Attention::attend(const LayerCall& call) const {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  call.executor.attend(call.stream, call.pass,
                       {.layer = call.kv_layer,
                        .q = call.q,
                        .out = call.q,
                        .zones = call.zones.queries,
                        .scale = scale});
  call.tap("attn_out", 0, call.q);
}

void Attention::finish(const LayerCall& call, const RowTile& tile, const Weights& weights) const {
  const int64_t width = int64_t{num_q_heads} * padded_head_dim();
  const TensorView heads = call.q.rows(tile.begin, tile.count).reshape({tile.count, width});
  if (output_gate) {
    Arena arena = tile.scratch;
    const TensorView gate = cut_gate(arena, *this, tile.count);
    matmul(call.stream, {.x = tile.x, .weight = weights.gate, .bias = {}, .out = gate});
    sigmoid_gate(call.stream, {.x = heads, .gate = gate});
  }
  const TensorView bias = shard.is_first() ? weights.o_bias : TensorView();
  matmul(call.stream, {.x = heads, .weight = weights.o, .bias = bias, .out = tile.out});
  call.tap("attn_proj", tile.begin, tile.out);
}

}  // namespace sluice
