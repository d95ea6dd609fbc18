// Weights: the parameters of a model in device memory, and how they are loaded.
//
// One list of expected tensors, made from the configuration alone, drives the memory plan, loading,
// dummy weights and the check for missing, extra and mis-shaped tensors. The three families share
// their tensor names; they differ in which biases and q/k norms are present. Thread rule: the
// engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/ids.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "io/model_directory.h"
#include "model/head_padding.h"
#include "model/model_config.h"
#include "ops/matmul/matmul.h"

namespace sluice {

// Parameters of one layer. Views are empty where the family has no such tensor. Heads of q, k and v
// are `padded` channels wide: head_dim, or more (model/head_padding.h).
struct LayerWeights {
  TensorView input_norm;  // bf16 [hidden]
  PackedWeight qkv;       // [(num_q_heads + 2 * num_kv_heads) * padded, hidden]: q, k, v
  TensorView qkv_bias;    // bf16 [same rows], Qwen2
  TensorView q_norm;      // bf16 [padded], Qwen3
  TensorView k_norm;      // bf16 [padded], Qwen3
  PackedWeight o;         // [hidden, num_q_heads * padded]
  TensorView o_bias;      // bf16 [hidden], Llama with attention_bias
  TensorView post_norm;   // bf16 [hidden]
  PackedWeight gate_up;   // [2 * intermediate, hidden]: gate, up
  PackedWeight down;      // [hidden, intermediate]
};

// Which axis of a tensor is made of head channels and may have to be padded.
enum class HeadAxis { kNone, kRows, kColumns };

// One tensor of a checkpoint and its destination: `matrix` or `vector`, never both.
struct WeightSource {
  std::string name;
  std::vector<int64_t> shape;  // in the checkpoint, before padding
  PackedWeight matrix;         // the tensor fills its rows from row_begin on
  int64_t row_begin = 0;       // in `matrix`, padding included
  HeadAxis heads = HeadAxis::kNone;
  TensorView vector;     // bf16; the tensor fills all of it
  float dummy_mean = 0;  // mean of dummy weights: 1 for norms, else 0
};

class Weights {
 public:
  // Takes the device memory. Contents are undefined until `load` or `fill_dummy` returns.
  Weights(const ModelConfig& config, Device& device);

  // Bytes of device memory that the constructor takes.
  static size_t device_bytes(const ModelConfig& config, Device& device);

  // Compares names and shapes of a checkpoint with the configuration. Reads file headers only.
  // Errors: kModel for a missing, extra or mis-shaped tensor, naming it.
  static void check(const ModelConfig& config, Device& device, const Checkpoint& checkpoint);

  // Reads all tensors in one pass over the files, converts each once, and keeps no second copy of
  // the weights. `on_progress` receives the share of bytes done. Returns when all are in device
  // memory.
  // Errors: before anything is read, kModel for a missing, extra or mis-shaped tensor and
  // kUnsupported for one of an unsupported type, naming it; later kModel for a file that is cut or
  // changed while it is read.
  void load(const Checkpoint& checkpoint, Stream& stream,
            const std::function<void(double)>& on_progress = nullptr);

  // Random weights; equal seeds give equal weights on every machine. `on_progress` receives the
  // share of tensors done.
  void fill_dummy(uint64_t seed, Stream& stream,
                  const std::function<void(double)>& on_progress = nullptr);

  // All tensors that are read, in the order of loading.
  std::span<const WeightSource> sources() const { return sources_; }

  const LayerWeights& layer(LayerId id) const { return layers_[static_cast<size_t>(id.value)]; }
  const PackedWeight& embedding() const { return embedding_; }
  const PackedWeight& lm_head() const { return lm_head_; }  // the embedding when they are tied
  const TensorView& final_norm() const { return final_norm_; }

 private:
  void lay_out(Arena& arena, Device& device);
  void lay_out_layer(Arena& arena, Device& device, int32_t index);
  // Cuts the memory of one matrix from `arena`.
  PackedWeight matrix(Arena& arena, Device& device, int64_t num_rows, int64_t num_cols);
  // These add one entry to sources_: a whole matrix's rows, or rows or elements that are heads.
  void add_rows(const std::string& name, const PackedWeight& matrix, int64_t row_begin,
                int64_t num_rows);
  void add_head_rows(const std::string& name, const PackedWeight& matrix, int64_t head_begin,
                     int64_t num_heads);
  void lay_out_attention(Arena& arena, Device& device, const std::string& prefix, LayerWeights& w);
  HeadPadding head_padding() const;
  bool pads(const WeightSource& source) const;
  void store_padded(const WeightSource& source, DType dtype, std::span<const std::byte> bytes,
                    Stream& stream) const;
  void store_dummy(const WeightSource& source, uint64_t& state, Stream& stream) const;
  void add_vector(const std::string& name, const TensorView& vector, float dummy_mean = 0);
  void add_head_vector(const std::string& name, const TensorView& vector, float dummy_mean = 0);
  explicit Weights(const ModelConfig& config) : config_(config) {}  // for planning
  void check_names(const Checkpoint& checkpoint) const;

  ModelConfig config_;
  Buffer memory_;  // all views below point into it
  std::vector<LayerWeights> layers_;
  PackedWeight embedding_;
  PackedWeight lm_head_;
  TensorView final_norm_;
  std::vector<WeightSource> sources_;  // every expected tensor, in the order of loading
};

}  // namespace sluice
