// The order of ops: embedding; per layer norm, mixer, norm, MLP; then logits.
#include "model/decoder.h"

#include <algorithm>

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

// The most scratch that any layer takes for tiles of `num_rows` rows.
template <typename Kinds>
int64_t scratch_bytes_of(const ModelConfig& config, Kinds LayerSpec::*kinds, int64_t num_rows) {
  const auto bytes_of = [&](const auto& kind) {
    return kind.scratch_bytes(num_rows, config.hidden_size);
  };
  size_t most = 0;
  for (const LayerSpec& layer : config.layers) {
    most = std::max(most, std::visit(bytes_of, layer.*kinds));
  }
  return static_cast<int64_t>(most);
}

// Rows of the output head that each of several ranks multiplies by: `width`, but fewer or none on
// the last ones.
struct HeadRange {
  int64_t width = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// In whole parts of a packed weight, so that a view is enough.
HeadRange head_range(const ModelConfig& config) {
  const Shard& shard = config.attention().shard;
  if (!shard.is_part()) return {};
  const int64_t unit = kRowsOfPart * shard.num_ranks;
  HeadRange range{.width = (config.vocab_size + unit - 1) / unit * kRowsOfPart};
  range.begin = std::min<int64_t>(shard.rank * range.width, config.vocab_size);
  range.count = std::min<int64_t>(range.width, config.vocab_size - range.begin);
  return range;
}

}  // namespace

struct Decoder::Rows {
  int64_t begin;
  int64_t count;
};

struct Decoder::Pass {
  Stream& stream;
  Executor& executor;
  const DecoderInput& input;
  TapSink* taps;
  int64_t num_rows;
  int64_t row_tile;
  int32_t num_layers;
  double attention_share;  // attention's fraction of a layer's arithmetic, for progress

  // row_tile bounds every tile. The last may be shorter, and with states all, since no tile ends
  // inside a chunk.
  // Calls `fn(rows)` for consecutive tiles of rows.
  template <typename Fn>
  void for_each_tile(Fn fn) const {
    for (int64_t begin = 0, end = 0; begin < num_rows; begin = end) {
      end = std::min(begin + row_tile, num_rows);
      if (input.states != nullptr) end = chunk_border(input.pass->spans, begin, end);
      fn(Rows{begin, end - begin});
    }
  }

  // `done` counts enqueued layers: 1.5 means one layer and half of the next.
  void report(double done) const {
    if (input.monitor != nullptr) input.monitor->on_part(stream, done / num_layers);
  }

  void tap(const std::string& name, int64_t row_begin, const TensorView& rows) const {
    if (taps != nullptr && taps->wants(name)) taps->tap(stream, name, row_begin, rows);
  }
};

// Cuts all scratch tensors from `arena`. Used twice, to plan and to take, so the sizes agree.
Decoder::Scratch Decoder::cut_scratch(Arena& arena, const ModelConfig& config,
                                      const DecoderLimits& limits) {
  const int64_t rows = limits.max_rows;
  const int64_t tile = std::min(limits.row_tile, rows);
  const int64_t hidden = config.hidden_size;
  const Attention& attention = config.attention();
  const int64_t head_dim = attention.padded_head_dim();
  Scratch s;
  s.residual = arena.tensor(DType::kBF16, {rows, hidden});
  s.q = arena.tensor(DType::kBF16, {rows, attention.num_q_heads, head_dim});
  s.cos_sin = arena.tensor(DType::kF32, {rows, 2, head_dim / 2});
  s.delta = arena.tensor(DType::kBF16, {tile, hidden});
  s.normed = arena.tensor(DType::kBF16, {tile, hidden});
  s.layer = arena.tensor(DType::kU8, {std::max(scratch_bytes_of(config, &LayerSpec::mixer, tile),
                                               scratch_bytes_of(config, &LayerSpec::mlp, tile))});
  s.logit_rows = arena.tensor(DType::kBF16, {limits.max_logit_rows, hidden});
  s.logits = arena.tensor(DType::kF32, {limits.max_logit_rows, config.vocab_size});
  s.logit_part = arena.tensor(DType::kF32, {limits.max_logit_rows * head_range(config).count});
  s.inv_freq = arena.tensor(DType::kF32, {head_dim / 2});
  if (limits.has_zones) {
    for (TensorView* angles : {&s.zones.own, &s.zones.before, &s.zones.far}) {
      *angles = arena.tensor(DType::kF32, {rows, 2, head_dim / 2});
    }
    s.zones.no_rows = arena.tensor(DType::kI32, {rows});
    for (TensorView* q : {&s.zones.queries.before, &s.zones.queries.far}) {
      *q = arena.tensor(DType::kBF16, {rows, attention.num_q_heads, head_dim});
    }
    s.zones.queries.chunk_tokens = static_cast<int32_t>(config.dual_chunk.chunk_tokens());
  }
  return s;
}

size_t Decoder::scratch_bytes(const ModelConfig& config, const DecoderLimits& limits) {
  Arena plan;
  cut_scratch(plan, config, limits);
  return plan.used_bytes();
}

Decoder::Decoder(const ModelConfig& config, const Weights& weights, const DecoderLimits& limits,
                 Device& device, Stream& stream, Collectives* collectives)
    : config_(config),
      weights_(weights),
      limits_(limits),
      collectives_(collectives),
      memory_(device.allocate(scratch_bytes(config, limits), MemoryKind::kDevice)) {
  Arena arena(memory_.data(), memory_.size_bytes());
  scratch_ = cut_scratch(arena, config, limits);
  RopeFrequencies rope = rope_frequencies(config);
  // Padding channels get frequency 0: angle 0, no rotation.
  rope.inv_freq.resize(static_cast<size_t>(config.attention().padded_head_dim() / 2));
  attention_factor_ = rope.attention_factor;
  SLUICE_CHECK(rope.inv_freq.size() * sizeof(float) == scratch_.inv_freq.num_bytes());
  stream.copy({.dst = scratch_.inv_freq.bytes(),
               .src = reinterpret_cast<const std::byte*>(rope.inv_freq.data()),
               .num_bytes = scratch_.inv_freq.num_bytes()});
  if (scratch_.zones.present()) {
    stream.fill(scratch_.zones.no_rows.bytes(), scratch_.zones.no_rows.num_bytes(), 0xFF);  // -1
  }
  stream.synchronize();  // the copy reads `rope`, which ends with this function
  if (collectives_ == nullptr) return;
  collectives_->share({.sums = scratch_.delta, .gathered = scratch_.logits});
  const HeadRange range = head_range(config);
  if (range.count > 0) {
    head_part_ = rows_of(device, weights.lm_head(), range.begin, range.count);
  }
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
                  config_.num_layers(),
                  attention_share(*input.pass)};
  if (host_experts_ != nullptr) host_experts_->begin_pass(num_rows);
  write_angles(pass);
  pass.for_each_tile([&](const Rows& rows) {
    embed(pass, rows);
    begin_layer(pass, LayerId(0), rows);
    pass.report(0);
  });
  for (int32_t layer = 0; layer < pass.num_layers; ++layer) {
    attend(pass, LayerId(layer));
    pass.report(layer + pass.attention_share);
    // One loop does the end of this layer and the start of the next: `delta` has one tile's rows,
    // and the next layer's first norm must read it before the next tile overwrites it.
    pass.for_each_tile([&](const Rows& rows) {
      finish_layer(pass, LayerId(layer), rows);
      if (layer + 1 < pass.num_layers) {
        begin_layer(pass, LayerId(layer + 1), rows);
      } else if (num_logit_rows(input) > 0 || input.keeps_rows) {
        // Only the sum in `residual` is used; row_logits norms the few rows it needs.
        norm_delta(pass, rows, weights_.final_norm());
      }
      const double done =
          static_cast<double>(rows.begin + rows.count) / static_cast<double>(num_rows);
      pass.report(layer + pass.attention_share + (1 - pass.attention_share) * done);
    });
  }
  return project_logits(pass);
}

void Decoder::replay(Stream& stream, const StatePool& states, const StateReplay& replay) const {
  for (int32_t i = 0; i < config_.num_layers(); ++i) {
    const LayerId layer(i);
    const auto* const net = std::get_if<DeltaNet>(&spec(layer).mixer);
    if (net == nullptr) continue;
    const int32_t index = spec(layer).state_layer.value;
    net->replay({.stream = stream,
                 .what = replay,
                 .records = states.records(index),
                 .states = states.layer(index),
                 .scratch = Arena(scratch_.layer.bytes(), scratch_.layer.num_bytes()),
                 .max_rows = std::min(limits_.row_tile, limits_.max_rows)},
                std::get<DeltaNet::Weights>(weights_.layer(layer).mixer));
  }
}

// Whether a row may lie past the first chunk. Passes before it have the bits of plain attention.
bool Decoder::has_zones(const AttentionPass& pass) const {
  return scratch_.zones.present() && pass.batch.max_kv_tokens > config_.dual_chunk.chunk_tokens();
}

// The angles that all layers share; those of zones where the pass has them.
void Decoder::write_angles(const Pass& pass) const {
  const DualChunk& dual_chunk = config_.dual_chunk;
  const auto write = [&](const TensorView& cos_sin, RopeZone zone) {
    rope_angles(pass.stream,
                {.positions = pass.input.positions,
                 .inv_freq = scratch_.inv_freq,
                 .attention_factor = attention_factor_,
                 .chunks = zone == RopeZone::kPlain ? RopeChunks() : dual_chunk.chunks(zone),
                 .cos_sin = cos_sin.rows(0, pass.num_rows)});
  };
  const bool has_zones = this->has_zones(*pass.input.pass);
  write(scratch_.cos_sin, has_zones ? RopeZone::kKeys : RopeZone::kPlain);
  if (!has_zones) return;
  write(scratch_.zones.own, RopeZone::kOwn);
  write(scratch_.zones.before, RopeZone::kBefore);
  write(scratch_.zones.far, RopeZone::kFar);
}

// Attention's share of the layers' multiply-adds; only progress reports depend on it. The context
// is the mean over the rows of the longest sequence, taken for all sequences of the pass.
double Decoder::attention_share(const AttentionPass& pass) const {
  const double mean_context = pass.batch.max_kv_tokens - pass.batch.max_rows / 2.0;
  const double attention = config_.products_per_pair() * mean_context;
  return attention / (attention + config_.products_per_row());
}

// Starts the residual stream: residual = 0, delta = embedding. The first norm then adds them like
// any other delta.
void Decoder::embed(const Pass& pass, const Rows& rows) {
  const TensorView delta = scratch_.delta.rows(0, rows.count);
  const TensorView residual = scratch_.residual.rows(rows.begin, rows.count);
  embedding(pass.stream, {.token_ids = pass.input.token_ids.rows(rows.begin, rows.count),
                          .table = weights_.embedding(),
                          .out = delta});
  pass.tap("embedding", rows.begin, delta);
  pass.stream.fill(residual.bytes(), residual.num_bytes(), 0);
}

const LayerSpec& Decoder::spec(LayerId layer) const {
  return config_.layers[static_cast<size_t>(layer.value)];
}

LayerCall Decoder::call_of(const Pass& pass, LayerId layer) const {
  ZoneCall zones;
  if (has_zones(*pass.input.pass)) {
    zones = scratch_.zones;
    zones.queries.before = zones.queries.before.rows(0, pass.num_rows);
    zones.queries.far = zones.queries.far.rows(0, pass.num_rows);
  }
  const LayerId state_layer = spec(layer).state_layer;
  DeltaStates states;
  DeltaRecords records;
  if (state_layer.valid()) {
    states = pass.input.states->layer(state_layer.value);
    if (pass.input.records_rows) records = pass.input.states->records(state_layer.value);
  }
  return {.stream = pass.stream,
          .layer = layer,
          .kv_layer = spec(layer).kv_layer,
          .norm_eps = config_.rms_norm_eps,
          .taps = pass.taps,
          .executor = pass.executor,
          .pass = *pass.input.pass,
          .kv = write_target_,
          .q = scratch_.q.rows(0, pass.num_rows),
          .cos_sin = scratch_.cos_sin.rows(0, pass.num_rows),
          .zones = zones,
          .state_rows = pass.input.state_rows,
          .states = states,
          .records = records,
          .experts = host_experts_};
}

RowTile Decoder::tile_of(const Rows& rows) const {
  return {.begin = rows.begin,
          .count = rows.count,
          .x = scratch_.normed.rows(0, rows.count),
          .out = scratch_.delta.rows(0, rows.count),
          .scratch = Arena(scratch_.layer.bytes(), scratch_.layer.num_bytes())};
}

// The part of a layer before attention, for one tile.
void Decoder::begin_layer(const Pass& pass, LayerId layer, const Rows& rows) {
  const LayerWeights& w = weights_.layer(layer);
  // Once per layer: with offload this call takes one of the two stage buffers.
  const LayerId kv_layer = spec(layer).kv_layer;
  if (rows.begin == 0 && kv_layer.valid()) {
    write_target_ = pass.executor.write_target(*pass.input.pass, kv_layer);
  }
  norm_delta(pass, rows, w.input_norm);
  const LayerCall call = call_of(pass, layer);
  call.tap("residual", rows.begin, scratch_.residual.rows(rows.begin, rows.count));
  visit_with_weights(spec(layer).mixer, w.mixer, [&](const auto& mixer, const auto& weights) {
    mixer.begin(call, tile_of(rows), weights);
  });
}

void Decoder::attend(const Pass& pass, LayerId layer) {
  std::visit([&](const auto& mixer) { mixer.attend(call_of(pass, layer)); }, spec(layer).mixer);
}

// The part of a layer after attention, for one tile. Leaves the MLP's output in `delta`; the next
// norm adds it.
void Decoder::finish_layer(const Pass& pass, LayerId layer, const Rows& rows) {
  const LayerWeights& w = weights_.layer(layer);
  const LayerCall call = call_of(pass, layer);
  visit_with_weights(spec(layer).mixer, w.mixer, [&](const auto& mixer, const auto& weights) {
    // Of a pass of one tile, as decode is, the norm's output is still there.
    const bool is_overwritten = rows.count < pass.num_rows;
    if (mixer.reads_input_twice() && is_overwritten) norm_again(pass, rows, w.input_norm);
    mixer.finish(call, tile_of(rows), weights);
  });
  const RowTile tile = tile_of(rows);
  sum_over_ranks(pass, tile);
  norm_delta(pass, rows, w.post_norm);
  visit_with_weights(spec(layer).mlp, w.mlp, [&](const auto& mlp, const auto& weights) {
    mlp.enqueue(call, tile, weights);
  });
  const bool is_last = rows.begin + rows.count == pass.num_rows;
  if (is_last && host_experts_ != nullptr) host_experts_->finish(layer);
  sum_over_ranks(pass, tile);
  call.tap("mlp_out", rows.begin, tile.out);
}

// The outputs of mixers and MLPs are sums over the ranks. What comes before and after is computed
// on each rank, from the same bits.
void Decoder::sum_over_ranks(const Pass& pass, const RowTile& tile) const {
  if (collectives_ != nullptr) collectives_->sum(pass.stream, tile.out);
}

// residual += delta, then normed = RMSNorm(residual) * weight, for one tile.
void Decoder::norm_delta(const Pass& pass, const Rows& rows, const TensorView& weight) {
  rms_norm(pass.stream, {.x = scratch_.delta.rows(0, rows.count),
                         .residual = scratch_.residual.rows(rows.begin, rows.count),
                         .weight = weight,
                         .out = scratch_.normed.rows(0, rows.count),
                         .eps = config_.rms_norm_eps,
                         .weight_offset = config_.norm_offset});
}

// normed = RMSNorm(residual) * weight for one tile, as norm_delta left it before other tiles: a
// norm costs little beside a buffer for all rows.
void Decoder::norm_again(const Pass& pass, const Rows& rows, const TensorView& weight) {
  rms_norm(pass.stream, {.x = scratch_.residual.rows(rows.begin, rows.count),
                         .residual = {},
                         .weight = weight,
                         .out = scratch_.normed.rows(0, rows.count),
                         .eps = config_.rms_norm_eps,
                         .weight_offset = config_.norm_offset});
}

// A span in the middle of a prompt has no logits.
TensorView Decoder::project_logits(const Pass& pass) {
  const int64_t count = num_logit_rows(pass.input);
  if (count == 0) return scratch_.logits.rows(0, 0);
  if (!divides_logits()) {
    const TensorView logits = row_logits(pass.stream, pass.input.logit_rows);
    pass.tap("final_norm", 0, scratch_.logit_rows.rows(0, count));
    return logits;
  }
  const TensorView normed = norm_rows(pass.stream, pass.input.logit_rows);
  const TensorView logits = scratch_.logits.rows(0, count);
  const HeadRange range = head_range(config_);
  const TensorView part(scratch_.logit_part.bytes(), DType::kF32, {count, range.count});
  if (range.count > 0) matmul(pass.stream, {.x = normed, .weight = head_part_, .out = part});
  collectives_->gather(pass.stream, {.part = part, .all = logits, .width = range.width});
  return logits;
}

// Applies the whole output head, also where several ranks have the weights of it.
TensorView Decoder::row_logits(Stream& stream, const TensorView& rows) {
  const TensorView normed = norm_rows(stream, rows);
  const TensorView logits = scratch_.logits.rows(0, normed.dim(0));
  matmul(stream, {.x = normed, .weight = weights_.lm_head(), .out = logits});
  return logits;
}

// Gathers rows from the residual stream and norms them.
TensorView Decoder::norm_rows(Stream& stream, const TensorView& rows) const {
  const int64_t count = rows.dim(0);
  SLUICE_CHECK(count <= limits_.max_logit_rows, "{} logit rows", count);
  const TensorView normed = scratch_.logit_rows.rows(0, count);
  gather_rows(stream, {scratch_.residual, rows, normed});
  rms_norm(stream, {.x = normed,
                    .residual = {},
                    .weight = weights_.final_norm(),
                    .out = normed,
                    .eps = config_.rms_norm_eps,
                    .weight_offset = config_.norm_offset});
  return normed;
}

}  // namespace sluice
