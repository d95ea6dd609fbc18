// Laying out, loading and inventing weights.
#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace sluice {
namespace {

// Some exporters keep the rotary buffers, and tied checkpoints may repeat the embedding as lm_head.
// Both carry nothing that is not known already.
bool may_be_ignored(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

float element_as_float(const std::byte* data, DType dtype, int64_t index) {
  const std::byte* at = data + static_cast<size_t>(index) * dtype_bytes(dtype);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  if (dtype == DType::kF16) return static_cast<float>(Float16{bits});
  SLUICE_CHECK(dtype == DType::kBF16, "weights in {}", dtype_name(dtype));
  return static_cast<float>(BFloat16::from_bits(bits));
}

// Norm weights and biases: small, converted on the host. The stream is waited for, since the
// converted values die here; there are a few hundred of them in a model.
void store_vector(const WeightSource& source, const CheckpointTensor& tensor, Stream& stream) {
  std::vector<BFloat16> values(static_cast<size_t>(source.vector.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = BFloat16(element_as_float(tensor.data, tensor.dtype, static_cast<int64_t>(i)));
  }
  stream.copy({.dst = source.vector.bytes(),
               .src = reinterpret_cast<const std::byte*>(values.data()),
               .num_bytes = source.vector.num_bytes()});
  stream.synchronize();
}

void store_matrix(const WeightSource& source, const CheckpointTensor& tensor, Stream& stream) {
  // Only pack_weight reads through this view, and it does not write.
  auto* data = const_cast<std::byte*>(tensor.data);
  pack_weight(stream, {.src = TensorView(data, tensor.dtype, {source.shape[0], source.shape[1]}),
                       .dst = source.matrix,
                       .row_begin = source.row_begin});
  stream.synchronize();  // so that its pages can be dropped: peak memory stays near the weights
}

// SplitMix64: one multiply-shift chain per value, the same on every machine.
// Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
uint64_t split_mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform values with mean `mean` and a deviation that keeps activations of random models in range
// (1 / sqrt(columns) would; 0.02 is what models are initialised with).
void fill_uniform(std::vector<BFloat16>& values, float mean, uint64_t& state) {
  constexpr float kHalfWidth = 0.02f * 1.7320508f;  // a uniform's deviation is half width / sqrt 3
  for (BFloat16& value : values) {
    const float unit = static_cast<float>(split_mix(state) >> 40) * 0x1p-24f;  // [0, 1)
    value = BFloat16(mean + kHalfWidth * (2 * unit - 1));
  }
}

}  // namespace

size_t Weights::device_bytes(const ModelConfig& config, Device& device) {
  Arena plan;
  Weights(config).lay_out(plan, device);
  return plan.used_bytes();
}

Weights::Weights(const ModelConfig& config, Device& device)
    : config_(config), memory_(device.allocate(device_bytes(config, device), MemoryKind::kDevice)) {
  Arena arena(memory_.data(), memory_.size_bytes());
  lay_out(arena, device);
}

PackedWeight Weights::matrix(Arena& arena, Device& device, int64_t num_rows, int64_t num_cols) {
  return {.data = arena.take(packed_weight_bytes(device, num_rows, num_cols)),
          .num_rows = num_rows,
          .num_cols = num_cols};
}

void Weights::add_rows(const std::string& name, const PackedWeight& matrix, int64_t row_begin,
                       int64_t num_rows) {
  sources_.push_back({.name = name,
                      .shape = {num_rows, matrix.num_cols},
                      .matrix = matrix,
                      .row_begin = row_begin,
                      .vector = {}});
}

void Weights::add_vector(const std::string& name, const TensorView& vector, float dummy_mean) {
  sources_.push_back({.name = name,
                      .shape = {vector.num_elements()},
                      .matrix = {},
                      .vector = vector,
                      .dummy_mean = dummy_mean});
}

void Weights::lay_out(Arena& arena, Device& device) {
  const int64_t hidden = config_.hidden_size;
  embedding_ = matrix(arena, device, config_.vocab_size, hidden);
  add_rows("model.embed_tokens.weight", embedding_, 0, config_.vocab_size);
  layers_.resize(static_cast<size_t>(config_.num_layers));
  for (int32_t i = 0; i < config_.num_layers; ++i) lay_out_layer(arena, device, i);
  final_norm_ = arena.tensor(DType::kBF16, {hidden});
  add_vector("model.norm.weight", final_norm_, 1);
  lm_head_ = embedding_;
  if (!config_.tie_word_embeddings) {
    lm_head_ = matrix(arena, device, config_.vocab_size, hidden);
    add_rows("lm_head.weight", lm_head_, 0, config_.vocab_size);
  }
}

void Weights::lay_out_layer(Arena& arena, Device& device, int32_t index) {
  const int64_t hidden = config_.hidden_size;
  const int64_t q_rows = int64_t{config_.num_q_heads} * config_.head_dim;
  const int64_t kv_rows = int64_t{config_.num_kv_heads} * config_.head_dim;
  const int64_t intermediate = config_.intermediate_size;
  const std::string prefix = fmt::format("model.layers.{}.", index);
  LayerWeights& w = layers_[static_cast<size_t>(index)];

  w.input_norm = arena.tensor(DType::kBF16, {hidden});
  add_vector(prefix + "input_layernorm.weight", w.input_norm, 1);
  w.qkv = matrix(arena, device, q_rows + 2 * kv_rows, hidden);
  add_rows(prefix + "self_attn.q_proj.weight", w.qkv, 0, q_rows);
  add_rows(prefix + "self_attn.k_proj.weight", w.qkv, q_rows, kv_rows);
  add_rows(prefix + "self_attn.v_proj.weight", w.qkv, q_rows + kv_rows, kv_rows);
  if (config_.qkv_bias) {
    w.qkv_bias = arena.tensor(DType::kBF16, {q_rows + 2 * kv_rows});
    add_vector(prefix + "self_attn.q_proj.bias", w.qkv_bias.rows(0, q_rows));
    add_vector(prefix + "self_attn.k_proj.bias", w.qkv_bias.rows(q_rows, kv_rows));
    add_vector(prefix + "self_attn.v_proj.bias", w.qkv_bias.rows(q_rows + kv_rows, kv_rows));
  }
  if (config_.qk_norm) {
    w.q_norm = arena.tensor(DType::kBF16, {config_.head_dim});
    add_vector(prefix + "self_attn.q_norm.weight", w.q_norm, 1);
    w.k_norm = arena.tensor(DType::kBF16, {config_.head_dim});
    add_vector(prefix + "self_attn.k_norm.weight", w.k_norm, 1);
  }
  w.o = matrix(arena, device, hidden, q_rows);
  add_rows(prefix + "self_attn.o_proj.weight", w.o, 0, hidden);
  if (config_.o_bias) {
    w.o_bias = arena.tensor(DType::kBF16, {hidden});
    add_vector(prefix + "self_attn.o_proj.bias", w.o_bias);
  }
  w.post_norm = arena.tensor(DType::kBF16, {hidden});
  add_vector(prefix + "post_attention_layernorm.weight", w.post_norm, 1);
  w.gate_up = matrix(arena, device, 2 * intermediate, hidden);
  add_rows(prefix + "mlp.gate_proj.weight", w.gate_up, 0, intermediate);
  add_rows(prefix + "mlp.up_proj.weight", w.gate_up, intermediate, intermediate);
  w.down = matrix(arena, device, hidden, intermediate);
  add_rows(prefix + "mlp.down_proj.weight", w.down, 0, hidden);
}

void Weights::check_names(const Checkpoint& checkpoint) const {
  std::vector<std::string> expected;
  for (const WeightSource& source : sources_) {
    checkpoint.tensor(source.name, source.shape);  // throws when missing or mis-shaped
    expected.push_back(source.name);
  }
  for (const std::string& name : checkpoint.names()) {
    if (may_be_ignored(name, config_)) expected.push_back(name);
  }
  checkpoint.require_only(expected);
}

void Weights::load(const Checkpoint& checkpoint, Stream& stream,
                   const std::function<void(double)>& on_progress) {
  check_names(checkpoint);
  uint64_t bytes_done = 0;
  for (const WeightSource& source : sources_) {
    const CheckpointTensor tensor = checkpoint.tensor(source.name, source.shape);
    checkpoint.will_need(tensor);
    if (source.matrix.present()) {
      store_matrix(source, tensor, stream);
    } else {
      store_vector(source, tensor, stream);
    }
    checkpoint.drop(tensor);
    bytes_done += tensor.num_bytes;
    if (on_progress) {
      on_progress(static_cast<double>(bytes_done) / static_cast<double>(checkpoint.num_bytes()));
    }
  }
}

void Weights::fill_dummy(uint64_t seed, Stream& stream,
                         const std::function<void(double)>& on_progress) {
  uint64_t state = seed;
  size_t num_done = 0;
  for (const WeightSource& source : sources_) {
    // At most 1024 rows are drawn and then repeated: as good for timing, and an 8B model does not
    // wait for 8 billion random numbers.
    const int64_t cols = source.shape.back();
    const int64_t rows = source.shape.size() == 2 ? source.shape[0] : 1;
    constexpr int64_t kRowsAtOnce = 1024;
    std::vector<BFloat16> values(static_cast<size_t>(std::min(rows, kRowsAtOnce) * cols));
    fill_uniform(values, source.dummy_mean, state);
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    const CheckpointTensor host{.name = source.name,
                                .data = bytes,
                                .dtype = DType::kBF16,
                                .shape = source.shape,
                                .num_bytes = values.size() * sizeof(BFloat16)};
    if (!source.matrix.present()) store_vector(source, host, stream);
    for (int64_t row = 0; source.matrix.present() && row < rows; row += kRowsAtOnce) {
      WeightSource slice = source;
      slice.row_begin += row;
      slice.shape[0] = std::min(kRowsAtOnce, rows - row);
      store_matrix(slice, host, stream);
    }
    if (on_progress) {
      on_progress(static_cast<double>(++num_done) / static_cast<double>(sources_.size()));
    }
  }
}

}  // namespace sluice
