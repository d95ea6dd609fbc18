// Lays out weights in device memory; loads them, or makes random ones.
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "model/loading/dummy_values.h"
#include "model/loading/gguf_rows.h"
#include "model/loading/integer_rows.h"
#include "model/loading/scale_rows.h"
#include "model/loading/tensor_values.h"
#include "model/loading/weight_tensors.h"
#include "model/output_head.h"

namespace sluice {
namespace {

// GPTQ's exporters write a bias for each module, which is zero where the model has none.
bool is_zero_bias(const std::string& name, const Checkpoint& checkpoint) {
  const bool is_linear =
      name.ends_with("_proj.bias") ||
      (name.find(".linear_attn.in_proj_") != name.npos && name.ends_with(".bias"));
  if (!is_linear) return false;
  const auto values = read_floats(checkpoint.tensor(name, *checkpoint.shape_of(name)));
  return std::ranges::all_of(values, [](float value) { return value == 0; });
}

// True for tensors that may be present and are not read: some exporters write the rotary
// frequencies, or scales of activations or of KV, and a checkpoint with a tied head may repeat the
// embedding as lm_head (output_head.h unties one that differs).
bool may_be_ignored(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == kHeadName) || is_kv_scale(name) ||
         (config.quantization.present() && is_activation_scale(name)) ||
         is_unread_part(name, config);
}

// Reads a tensor's bytes on the threads of pack_weight, which must not throw. Keeps the first
// failure, under a lock since several threads read at once.
class TensorReader final : public WeightReader {
 public:
  explicit TensorReader(const CheckpointTensor& tensor) : tensor_(tensor) {}

  void read(size_t offset, std::span<std::byte> dst) const noexcept override {
    try {
      read_numbers(tensor_, offset, dst);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  // Throws the first failure. REQUIRES: the stream of pack_weight was synchronized.
  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const CheckpointTensor& tensor_;
  mutable std::mutex mutex_;
  mutable std::exception_ptr failure_;
};

// Copies a norm weight or a bias to the device. Synchronizes, since `values` belongs to the caller;
// a model has a few hundred such small tensors.
void store_vector(const WeightSource& source, const std::vector<BFloat16>& values, Stream& stream) {
  stream.copy({.dst = source.vector.bytes(),
               .src = reinterpret_cast<const std::byte*>(values.data()),
               .num_bytes = source.vector.num_bytes()});
  stream.synchronize();
}

// Rounds each element to bf16, to nearest even.
std::vector<BFloat16> as_bf16(std::span<const std::byte> bytes, DType dtype) {
  std::vector<BFloat16> values(bytes.size() / dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = BFloat16(element_as_float(bytes.data(), dtype, static_cast<int64_t>(i)));
  }
  return values;
}

void copy_floats(std::span<const float> values, float* to, Stream& stream) {
  stream.copy({.dst = reinterpret_cast<std::byte*>(to),
               .src = reinterpret_cast<const std::byte*>(values.data()),
               .num_bytes = values.size_bytes()});
}

// As above for a vector of f32, whose numbers keep all their bits.
void store_floats(const WeightSource& source, const std::vector<float>& values, Stream& stream) {
  auto* to = source.vector.data<float>();
  if (!source.transposed) {
    copy_floats(values, to, stream);
    return stream.synchronize();
  }
  const auto num_rows = static_cast<size_t>(source.shape.back());
  const size_t num_columns = values.size() / num_rows;
  for (size_t row = 0; row < num_rows; ++row, to += source.vector.dim(1)) {
    std::vector<float> ordered(num_columns);
    for (size_t i = 0; i < num_columns; ++i) ordered[i] = values[i * num_rows + row];
    copy_floats(ordered, to + source.row_begin, stream);
    stream.synchronize();
  }
}

void load_vector(const WeightSource& source, const CheckpointTensor& tensor, Stream& stream) {
  if (source.vector.dtype() == DType::kF32) {
    return store_floats(source, read_floats(tensor), stream);
  }
  store_vector(source, as_bf16(read_whole(tensor), tensor.dtype), stream);
}

// The type as pack_weight takes it: e4m3 as its codes.
DType packed_dtype(DType dtype) { return dtype == DType::kE4m3 ? DType::kU8 : dtype; }

// Packs rows of a matrix from host memory or a reader of `src`. Synchronizes, since what it reads
// belongs to the caller.
void pack_rows(const WeightSource& source, const TensorView& src, ScaleRows scales, Stream& stream,
               const WeightReader* reader = nullptr) {
  PackWeightArgs args{.src = src,
                      .dst = source.matrix,
                      .row_begin = source.row_begin,
                      .reader = reader,
                      .order_index = source.order_index};
  scales.add_to(args);
  pack_weight(stream, args);
  stream.synchronize();
}

// Reads a matrix straight into its packed form, without a host copy of it. The error of a cut file
// names the tensor that was read.
void load_matrix(const WeightSource& source, const CheckpointTensor& tensor, ScaleRows scales,
                 Stream& stream) {
  const TensorReader reader(tensor);
  const TensorView src(nullptr, packed_dtype(tensor.dtype), {source.shape[0], source.shape[1]});
  pack_rows(source, src, std::move(scales), stream, &reader);
  reader.rethrow_failure();
}

// Pads the heads of a tensor, or of consecutive heads of one, and stores them. `bytes` has
// source.shape and type `dtype`. Synchronizes.
void store_padded(const WeightSource& source, DType dtype, std::span<const std::byte> bytes,
                  ScaleRows scales, Stream& stream) {
  const HeadPadding& padding = source.padding;
  const bool by_rows = source.heads == HeadAxis::kRows;
  const auto num_rows = static_cast<size_t>(source.shape[0]);
  const size_t unit_bytes = by_rows ? bytes.size() / num_rows : dtype_bytes(dtype);
  std::vector<std::byte> padded = pad_heads(padding, bytes, unit_bytes);
  if (!source.matrix.present()) return store_vector(source, as_bf16(padded, dtype), stream);
  int64_t rows = source.shape[0];
  int64_t cols = source.shape[1];
  int64_t& widened = by_rows ? rows : cols;
  widened = padding.padded_units(widened);
  if (scales.present() && by_rows) scales = padded_scales(source, scales);
  pack_rows(source, TensorView(padded.data(), packed_dtype(dtype), {rows, cols}), std::move(scales),
            stream);
}

// Stores rows of a matrix from host memory.
void store_matrix(const WeightSource& source, DType dtype, std::span<const std::byte> bytes,
                  ScaleRows scales, Stream& stream) {
  const TensorView src(const_cast<std::byte*>(bytes.data()), packed_dtype(dtype),
                       {source.shape[0], source.shape[1]});
  pack_rows(source, src, std::move(scales), stream);
}

// A matrix of integers is decoded while it is packed.
void load_integers(const WeightSource& source, const Checkpoint& checkpoint, Stream& stream) {
  IntegerRows rows(source, checkpoint);
  ScaleRows scales = rows.take_scales();
  if (!source.pads()) {
    const TensorView src(nullptr, DType::kU8, {source.shape[0], source.shape[1]});
    return pack_rows(source, src, std::move(scales), stream, &rows);
  }
  std::vector<std::byte> codes(static_cast<size_t>(source.shape[0] * source.shape[1]));
  rows.read(0, codes);
  store_padded(source, DType::kU8, codes, std::move(scales), stream);
}

// A matrix in blocks of GGUF, likewise.
void load_gguf(const WeightSource& source, const CheckpointTensor& tensor, Stream& stream) {
  GgufRows rows(source, tensor);
  const TensorView src(nullptr, DType::kU8, {rows.num_rows(), source.shape[1]});
  pack_rows(source, src, rows.take_values(), stream, &rows);
}

// Errors: kDoesNotFit, with the option that asked for it and what else to do.
Buffer pin_experts(Device& device, size_t num_bytes, const AllocationProgress& on_progress) {
  try {
    return device.allocate(num_bytes, MemoryKind::kPinned, on_progress);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDoesNotFit) throw;
    throw Error(
        ErrorCode::kDoesNotFit,
        fmt::format("{}; weights_offload 'experts' keeps the experts there: take a model of "
                    "smaller weights (FP8, 4 bits), or 'off' on a device that holds them",
                    error.message()));
  }
}

// Whole heads with padding, since store_padded takes whole heads.
int64_t drawn_rows(const WeightSource& source) {
  const bool by_heads = source.pads() && source.heads == HeadAxis::kRows;
  return by_heads ? 1024 / source.padding.head_dim * source.padding.head_dim : 1024;
}

void store_dummy_vector(const WeightSource& source, uint64_t state, Stream& stream) {
  int64_t count = 1;
  for (const int64_t dim : source.tensor_shape()) count *= dim;
  const auto drawn = draw_uniform(static_cast<size_t>(count), source.dummy_mean, state);
  const int64_t row_elements = source.num_elements() / source.shape.front();
  const auto first = drawn.begin() + source.slice.row_begin * row_elements;
  const std::vector<BFloat16> values(first, first + source.num_elements());
  if (source.vector.dtype() == DType::kF32) {
    return store_floats(source, std::vector<float>(values.begin(), values.end()), stream);
  }
  if (!source.pads()) return store_vector(source, values, stream);
  store_padded(source, DType::kBF16, std::as_bytes(std::span(values)), {}, stream);
}

// Fills rows of a matrix with those drawn for its tensor, which repeat.
void store_dummy_rows(const WeightSource& source, const DummyRows& rows, Stream& stream) {
  const HeadPadding& padding = source.padding;
  const bool by_heads = source.pads() && source.heads == HeadAxis::kRows;
  const int64_t first = source.first_row(), num_cols = source.shape[1];
  for (int64_t at = 0; at < source.shape[0];) {
    const int64_t in_rows = (first + at) % rows.count;
    const int64_t num = std::min(rows.count - in_rows, source.shape[0] - at);
    WeightSource part = source;
    part.row_begin += by_heads ? padding.padded_units(at) : at;
    part.shape[0] = num;
    ScaleRows scales;
    const bool pads_first = by_heads && stores_gguf(part.matrix.format);
    const int64_t num_values = pads_first ? padding.padded_units(num) : num;
    if (!rows.codes.empty()) scales = dummy_scales(part.matrix.format, num_values, num_cols);
    const auto bytes = rows.cut(in_rows, num, source.slice.col_begin, num_cols);
    const auto store = source.pads() ? store_padded : store_matrix;
    store(part, rows.dtype(), bytes, std::move(scales), stream);
    at += num;
  }
}

}  // namespace

// An arena without memory only counts: the same layout code plans and takes.
Weights::MemoryBytes Weights::memory_bytes(const ModelConfig& config, Device& device,
                                           ExpertPlace place) {
  return Weights(config).lay_out_plan(device, place);
}

Weights::MemoryBytes Weights::lay_out_plan(Device& device, ExpertPlace place) {
  Arena counted;
  Arena pinned;
  lay_out(counted, place == ExpertPlace::kPinned ? pinned : counted, device);
  return {.device = counted.used_bytes(), .pinned = pinned.used_bytes()};
}

Weights::Plan Weights::plan(const ModelConfig& config, Device& device) {
  Weights weights(config);
  const MemoryBytes bytes = weights.lay_out_plan(device, ExpertPlace::kPinned);
  return {.bytes = bytes, .experts = weights.experts()};
}

std::vector<ExpertLayer> Weights::experts() const {
  std::vector<ExpertLayer> experts;
  for (int32_t i = 0; i < config_.num_layers(); ++i) {
    const auto* mlp = std::get_if<ExpertMlp>(&config_.layers[static_cast<size_t>(i)].mlp);
    if (mlp == nullptr) continue;
    const auto& own = std::get<ExpertMlp::Weights>(layer(LayerId(i)).mlp);
    experts.push_back({.layer = LayerId(i),
                       .num_chosen = mlp->num_chosen,
                       .gate_up = own.gate_up,
                       .down = own.down});
  }
  return experts;
}

Weights::StoredBytes Weights::stored_bytes(const ModelConfig& config, Device& device) {
  Weights weights(config);
  weights.lay_out_plan(device, ExpertPlace::kDevice);
  StoredBytes num_bytes;
  double active = 0;
  std::set<std::pair<std::string, int64_t>> ordered;  // one order for all ranges of a tensor's rows
  for (const WeightSource& source : weights.sources_) {
    const bool is_matrix = source.shape.size() == 2;
    const int64_t num_rows = is_matrix ? source.shape[0] : source.num_elements();
    size_t own = weight_bytes(source.matrix.format, num_rows, is_matrix ? source.shape[1] : 1);
    if (source.matrix.format.num_orders > 0 &&
        ordered.emplace(source.name, source.matrix.num_rows).second) {
      own += order_bytes(source.shape[1]);
    }
    num_bytes.all += own;
    active += static_cast<double>(own) * source.active_share;
  }
  num_bytes.active = static_cast<size_t>(std::llround(active));
  return num_bytes;
}

Weights::Weights(const ModelConfig& config, Device& device, ExpertPlace place,
                 const AllocationProgress& on_progress)
    : config_(config) {
  const MemoryBytes num_bytes = memory_bytes(config, device, place);
  memory_ = device.allocate(num_bytes.device, MemoryKind::kDevice);
  Arena arena(memory_.data(), memory_.size_bytes());
  if (place == ExpertPlace::kPinned) {
    expert_memory_ = pin_experts(device, num_bytes.pinned, on_progress);
  }
  Arena expert_arena(expert_memory_.data(), expert_memory_.size_bytes());
  lay_out(arena, place == ExpertPlace::kPinned ? expert_arena : arena, device);
}

// Cuts all memory and lists all expected tensors, in the order of the checkpoint's layers.
void Weights::lay_out(Arena& arena, Arena& expert_arena, Device& device) {
  const int64_t hidden = config_.hidden_size;
  WeightLayout layout({.weights = arena, .experts = expert_arena}, device, config_.quantization,
                      sources_);
  embedding_ = layout.matrix(config_.vocab_size, hidden);
  layout.add_rows(std::string(kEmbeddingName), embedding_, 0, config_.vocab_size);
  layers_.resize(config_.layers.size());
  for (int32_t i = 0; i < config_.num_layers(); ++i) lay_out_layer(layout, i);
  final_norm_ = layout.vector(hidden);
  layout.add_vector("model.norm.weight", final_norm_, 1 - config_.norm_offset);
  lm_head_ = embedding_;
  if (!config_.tie_word_embeddings) {
    lm_head_ = layout.matrix(config_.vocab_size, hidden, {"lm_head"});
    layout.add_rows(std::string(kHeadName), lm_head_, 0, config_.vocab_size);
  }
}

void Weights::lay_out_layer(WeightLayout& layout, int32_t index) {
  const int64_t hidden = config_.hidden_size;
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const LayerSpec& spec = config_.layers[static_cast<size_t>(index)];
  const auto lay_out = [&](const auto& kinds) {
    using Laid = WeightsOf<std::decay_t<decltype(kinds)>>;
    return std::visit([&](const auto& kind) { return Laid(kind.lay_out(layout, prefix, hidden)); },
                      kinds);
  };
  LayerWeights& w = layers_[static_cast<size_t>(index)];
  w.input_norm = layout.vector(hidden);
  layout.add_vector(prefix + "input_layernorm.weight", w.input_norm, 1 - config_.norm_offset);
  w.mixer = lay_out(spec.mixer);
  w.post_norm = layout.vector(hidden);
  layout.add_vector(prefix + "post_attention_layernorm.weight", w.post_norm,
                    1 - config_.norm_offset);
  w.mlp = lay_out(spec.mlp);
}

// Errors: kModel for tensors that are missing, mis-shaped, or neither expected nor ignorable.
void Weights::check_names(const Checkpoint& checkpoint) const {
  std::vector<std::string> expected;
  for (const WeightSource& source : sources_) {
    for (const CheckpointTensor& tensor : tensors_of(source, checkpoint)) {
      expected.emplace_back(tensor.name);
    }
  }
  // A head that is not read must be one that repeats the embedding.
  if (config_.tie_word_embeddings && checkpoint.has(kHeadName)) {
    checkpoint.tensor(kHeadName, sources_.front().shape);
  }
  for (const std::string& name : checkpoint.names()) {
    const bool may_have_bias = config_.quantization.has_integers();
    if (may_be_ignored(name, config_) || (may_have_bias && is_zero_bias(name, checkpoint))) {
      expected.push_back(name);
    }
  }
  checkpoint.require_only(expected);
}

void Weights::check(const ModelConfig& config, Device& device, const Checkpoint& checkpoint) {
  Weights weights(config);
  weights.lay_out_plan(device, ExpertPlace::kDevice);
  weights.check_names(checkpoint);
}

uint64_t Weights::checkpoint_bytes(const Checkpoint& checkpoint) const {
  uint64_t sum = 0;
  for (const WeightSource& source : sources_) {
    for (const CheckpointTensor& tensor : tensors_of(source, checkpoint)) sum += tensor.num_bytes;
  }
  return sum;
}

void Weights::load(const Checkpoint& checkpoint, Stream& stream,
                   const std::function<void(double)>& on_progress) {
  check_names(checkpoint);
  const uint64_t all_bytes = checkpoint_bytes(checkpoint);
  uint64_t bytes_done = 0;
  for (const WeightSource& source : sources_) {
    const std::vector<CheckpointTensor> tensors = tensors_of(source, checkpoint);
    for (const CheckpointTensor& tensor : tensors) {
      tensor.will_need();
      bytes_done += tensor.num_bytes;
    }
    const CheckpointTensor& tensor = tensors.front();
    ScaleRows scales = read_scales(source, checkpoint);
    if (source.integers != IntegerForm::kNone) {
      load_integers(source, checkpoint, stream);
    } else if (stores_gguf(source.matrix.format)) {
      load_gguf(source, tensor, stream);
    } else if (source.pads()) {
      store_padded(source, tensor.dtype, read_whole(tensor), std::move(scales), stream);
    } else if (source.matrix.present()) {
      load_matrix(source, tensor, std::move(scales), stream);
    } else {
      load_vector(source, tensor, stream);
    }
    if (on_progress) {
      on_progress(static_cast<double>(bytes_done) / static_cast<double>(all_bytes));
    }
  }
  // A file rewritten meanwhile may have given old and new tensors.
  checkpoint.require_unchanged();
}

void Weights::fill_dummy(uint64_t seed, Stream& stream,
                         const std::function<void(double)>& on_progress) {
  uint64_t state = seed;
  DummyNumbers numbers(state);
  DummyRows rows;
  std::string_view drawn;  // the tensor of `rows`; its sources follow each other
  size_t num_done = 0;
  const bool spreads = !experts().empty() && !config_.tie_word_embeddings;
  for (const WeightSource& source : sources_) {
    state = dummy_state(seed, source.name);
    if (!source.matrix.present()) {
      store_dummy_vector(source, state, stream);
    } else {
      if (std::exchange(drawn, source.name) != source.name) {
        rows = numbers.next_rows(source.matrix.format, source.tensor_shape(), drawn_rows(source),
                                 state);
        if (spreads && source.name == kEmbeddingName) rows.scale(kSpreadScale);
      }
      store_dummy_rows(source, rows, stream);
    }
    if (on_progress) {
      on_progress(static_cast<double>(++num_done) / static_cast<double>(sources_.size()));
    }
  }
}

}  // namespace sluice
