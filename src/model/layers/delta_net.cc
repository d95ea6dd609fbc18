// The order of ops: projections, convolution, delta rule, gated norm, projection.
#include "model/layers/delta_net.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace sluice {
namespace {

// Rows of one part of a tile, which bounds the scratch: 109 KiB a row for 48 heads of 128, of which
// no more is taken than the MLP's part of a tile needs anyway. With 256 a GPU would read the
// weights as often as it computes.
constexpr int64_t kMaxDeltaRows = 2048;

// Neighbouring channels of the convolution, and what of a tensor's rows they are. All are read at
// once but for a rank's part of the heads, whose queries, keys and values lie apart.
struct ChannelPart {
  int64_t begin = 0;
  int64_t count = 0;
  TensorSlice slice = {};
};

std::vector<ChannelPart> channel_parts(const DeltaShape& shape, Shard shard) {
  if (!shard.is_part()) return {{.count = shape.num_channels()}};
  std::vector<ChannelPart> parts;
  int64_t begin = 0;
  for (const int64_t width : {shape.k_width(), shape.k_width(), shape.v_width()}) {
    parts.push_back({.begin = begin,
                     .count = width,
                     .slice = {.row_begin = shard.num_ranks * begin + shard.rank * width,
                               .num_rows = shard.num_ranks * shape.num_channels()}});
    begin += width;
  }
  return parts;
}

// Lists the next rows of a tensor.
void add_next_rows(WeightLayout& layout, WeightLayout::RowRange& range, const PackedWeight& matrix,
                   int64_t num_rows, int64_t row_begin) {
  range.num_rows = num_rows;
  layout.add_row_range(range, matrix, row_begin);
  range.from += num_rows;
}

}  // namespace

struct DeltaNet::Scratch {
  TensorView in;      // bf16 [num_rows, in_width]
  TensorView gates;   // f32 [num_rows, 2 * num_v_heads]
  TensorView mixed;   // f32 [num_rows, num_channels]: q, k, v after the convolution
  TensorView out;     // f32 [num_rows, v_width]
  TensorView normed;  // bf16 [num_rows, v_width]
};

// The same calls count the bytes, with an arena without memory, and cut them.
DeltaNet::Scratch DeltaNet::cut_scratch(Arena& arena, int64_t num_rows) const {
  return {.in = arena.tensor(DType::kBF16, {num_rows, in_width()}),
          .gates = arena.tensor(DType::kF32, {num_rows, 2 * int64_t{shape.num_v_heads}}),
          .mixed = arena.tensor(DType::kF32, {num_rows, shape.num_channels()}),
          .out = arena.tensor(DType::kF32, {num_rows, shape.v_width()}),
          .normed = arena.tensor(DType::kBF16, {num_rows, shape.v_width()})};
}

int64_t chunk_border(std::span<const PrefillSpan> spans, int64_t begin, int64_t end) {
  int64_t row_begin = 0;
  for (const PrefillSpan& span : spans) {
    if (end < row_begin + span.num_rows) {
      const int64_t border = end - (span.first_pos + end - row_begin) % kDeltaChunk;
      return border > begin && border >= row_begin ? border : end;
    }
    row_begin += span.num_rows;
  }
  return end;
}

void DeltaNet::describe(std::map<std::string, std::string>& fields) const {
  fields["delta_k_heads"] = std::to_string(shape.num_k_heads);
  fields["delta_v_heads"] = std::to_string(shape.num_v_heads);
  fields["delta_k_dim"] = std::to_string(shape.k_dim);
  fields["delta_v_dim"] = std::to_string(shape.v_dim);
  fields["delta_taps"] = std::to_string(shape.num_taps);
}

void DeltaNet::cut(Shard part) {
  shard = part;
  shape.num_k_heads /= part.num_ranks;
  shape.num_v_heads /= part.num_ranks;
}

// One product computes q, k, v and z, and another the gates. Of several ranks each has the columns
// of `out` for its heads, so their outputs are parts of a sum.
DeltaNet::Weights DeltaNet::lay_out(WeightLayout& layout, const std::string& prefix,
                                    int64_t hidden) const {
  const std::string name = prefix + "linear_attn.";
  Weights w;
  is_grouped ? lay_out_grouped_in(layout, name, hidden, w) : lay_out_in(layout, name, hidden, w);
  groups_gates ? lay_out_grouped_gates(layout, name, hidden, w)
               : lay_out_gates(layout, name, hidden, w);
  lay_out_vectors(layout, name, w);
  w.out = layout.matrix(hidden, shape.v_width(), {name + "out_proj"});
  layout.add_rows(name + "out_proj.weight", w.out, 0, hidden, shard.columns(shape.v_width()));
  return w;
}

// Taps, A_log, dt_bias and the norm stay f32: they act on f32 numbers, and there are few of them.
void DeltaNet::lay_out_vectors(WeightLayout& layout, const std::string& name, Weights& w) const {
  w.taps = layout.vector(shape.num_taps * shape.num_channels(), DType::kF32)
               .reshape({shape.num_taps, shape.num_channels()});
  for (const ChannelPart& part : channel_parts(shape, shard)) {
    layout.add_taps(name + "conv1d.weight", w.taps, part.begin, part.count, part.slice);
  }
  const TensorSlice heads = shard.rows(shape.num_v_heads);
  w.a_log = layout.vector(shape.num_v_heads, DType::kF32);
  layout.add_vector(name + "A_log", w.a_log, 0, heads);
  w.dt_bias = layout.vector(shape.num_v_heads, DType::kF32);
  layout.add_vector(name + "dt_bias", w.dt_bias, 0, heads);
  w.norm = layout.vector(shape.v_dim, DType::kF32);
  layout.add_vector(name + "norm.weight", w.norm, 1);
}

// Qwen3.5 and later: a tensor for each part.
void DeltaNet::lay_out_in(WeightLayout& layout, const std::string& name, int64_t hidden,
                          Weights& w) const {
  const std::string qkv = name + "in_proj_qkv.weight";
  const int64_t channels = shape.num_channels();
  const int64_t part_rows = shard.is_part() ? std::gcd(shape.k_width(), shape.v_width()) : channels;
  w.in = layout.matrix(in_width(), hidden, {name + "in_proj_qkv", name + "in_proj_z"}, part_rows);
  for (const ChannelPart& part : channel_parts(shape, shard)) {
    if (!part.slice.present()) {
      layout.add_rows(qkv, w.in, part.begin, part.count);
      continue;
    }
    layout.add_row_range({.name = qkv,
                          .num_tensor_rows = part.slice.num_rows,
                          .from = part.slice.row_begin,
                          .num_rows = part.count},
                         w.in, part.begin);
  }
  layout.add_rows(name + "in_proj_z.weight", w.in, channels, shape.v_width(),
                  shard.rows(shape.v_width()));
}

void DeltaNet::lay_out_gates(WeightLayout& layout, const std::string& name, int64_t hidden,
                             Weights& w) const {
  w.gates = layout.matrix(2 * int64_t{shape.num_v_heads}, hidden,
                          {name + "in_proj_b", name + "in_proj_a"}, shape.num_v_heads);
  const TensorSlice heads = shard.rows(shape.num_v_heads);
  layout.add_rows(name + "in_proj_b.weight", w.gates, 0, shape.num_v_heads, heads);
  layout.add_rows(name + "in_proj_a.weight", w.gates, shape.num_v_heads, shape.num_v_heads, heads);
}

// Qwen3-Next: a key head has its rows of q and k, then those of v and z of its value heads; of the
// gates b and a of these. A rank's key heads are neighbours. Blocks of scales stay whole where
// heads have a multiple of their rows.
void DeltaNet::lay_out_grouped_in(WeightLayout& layout, const std::string& name, int64_t hidden,
                                  Weights& w) const {
  const int64_t v_rows = shape.num_v_heads / shape.num_k_heads * int64_t{shape.v_dim};
  w.in = layout.matrix(in_width(), hidden, {name + "in_proj_qkvz"},
                       std::gcd(int64_t{shape.k_dim}, v_rows));
  WeightLayout::RowRange in{.name = name + "in_proj_qkvz.weight",
                            .num_tensor_rows = shard.num_ranks * in_width(),
                            .from = shard.rank * in_width()};
  for (int64_t head = 0; head < shape.num_k_heads; ++head) {
    add_next_rows(layout, in, w.in, shape.k_dim, head * shape.k_dim);
    add_next_rows(layout, in, w.in, shape.k_dim, shape.k_width() + head * shape.k_dim);
    add_next_rows(layout, in, w.in, v_rows, 2 * shape.k_width() + head * v_rows);
    add_next_rows(layout, in, w.in, v_rows, shape.num_channels() + head * v_rows);
  }
}

void DeltaNet::lay_out_grouped_gates(WeightLayout& layout, const std::string& name, int64_t hidden,
                                     Weights& w) const {
  const int64_t v_heads = shape.num_v_heads / shape.num_k_heads;
  const int64_t num_gates = 2 * int64_t{shape.num_v_heads};
  w.gates = layout.matrix(num_gates, hidden, {name + "in_proj_ba"}, v_heads);
  WeightLayout::RowRange gates{.name = name + "in_proj_ba.weight",
                               .num_tensor_rows = shard.num_ranks * num_gates,
                               .from = shard.rank * num_gates};
  for (int64_t head = 0; head < shape.num_k_heads; ++head) {
    add_next_rows(layout, gates, w.gates, v_heads, head * v_heads);
    add_next_rows(layout, gates, w.gates, v_heads, shape.num_v_heads + head * v_heads);
  }
}

size_t DeltaNet::scratch_bytes(int64_t num_rows, int64_t /*hidden*/) const {
  Arena plan;
  cut_scratch(plan, std::min(num_rows, kMaxDeltaRows));
  return plan.used_bytes();
}

ShortConvArgs DeltaNet::conv_of(const Steps& steps, const Scratch& scratch,
                                const Weights& weights) {
  return {.x = scratch.in,
          .taps = weights.taps,
          .rows = steps.rows,
          .states = steps.states,
          .out = scratch.mixed};
}

DeltaRuleArgs DeltaNet::rule_of(const Steps& steps, const Scratch& scratch,
                                const Weights& weights) {
  return {.mixed = scratch.mixed,
          .gates = scratch.gates,
          .a_log = weights.a_log,
          .dt_bias = weights.dt_bias,
          .rows = steps.rows,
          .states = steps.states,
          .out = scratch.out};
}

// Parts reuse one scratch, since the stream runs them one after the other; each continues the
// states that the one before it left.
void DeltaNet::finish(const LayerCall& call, const RowTile& tile, const Weights& weights) const {
  for (int64_t begin = 0, count = 0; begin < tile.count; begin += count) {
    count = std::min(kMaxDeltaRows, tile.count - begin);
    const int64_t first = tile.begin + begin;
    if (begin + count < tile.count) {
      count = chunk_border(call.pass.spans, first, first + count) - first;
    }
    const TensorView x = tile.x.rows(begin, count);
    Arena arena = tile.scratch;
    Scratch scratch = cut_scratch(arena, count);
    if (call.records.present()) {
      scratch.in = call.records.in.rows(first, count);
      scratch.gates = call.records.gates.rows(first, count);
    }
    DeltaRows rows = call.state_rows;
    rows.first_row = first;
    // The gates first: while a decode step multiplies by their few rows, the kernel of the large
    // product has begun and reads its weight.
    matmul(call.stream, {.x = x, .weight = weights.gates, .bias = {}, .out = scratch.gates});
    matmul(call.stream, {.x = x, .weight = weights.in, .bias = {}, .out = scratch.in});
    const Steps steps{.rows = rows, .states = call.states};
    delta_mixer(call.stream, {.conv = conv_of(steps, scratch, weights),
                              .rule = rule_of(steps, scratch, weights),
                              .norm = {.x = scratch.out,
                                       .gate = scratch.in,
                                       .gate_column = shape.num_channels(),
                                       .weight = weights.norm,
                                       .eps = call.norm_eps,
                                       .out = scratch.normed}});
    call.tap("delta_gates", first, scratch.gates);
    call.tap("delta_out", first, scratch.out);
    matmul(call.stream, {.x = scratch.normed,
                         .weight = weights.out,
                         .bias = {},
                         .out = tile.out.rows(begin, count)});
  }
  call.tap("delta_proj", tile.begin, tile.out);
}

// Outputs are computed, too, and not read: a form of the rule without them would be another kernel.
void DeltaNet::replay(const Replay& replay, const Weights& weights) const {
  const int64_t most = std::min(kMaxDeltaRows, replay.max_rows);
  for (int64_t begin = 0; begin < replay.what.num_rows; begin += most) {
    const int64_t count = std::min(most, replay.what.num_rows - begin);
    Arena arena = replay.scratch;
    Scratch scratch = cut_scratch(arena, count);
    scratch.in = replay.records.in.rows(begin, count);
    scratch.gates = replay.records.gates.rows(begin, count);
    DeltaRows rows = replay.what.rows;
    rows.first_row = begin;
    const Steps steps{.rows = rows, .states = replay.states};
    short_conv(replay.stream, conv_of(steps, scratch, weights));
    delta_rule(replay.stream, rule_of(steps, scratch, weights));
  }
}

}  // namespace sluice
