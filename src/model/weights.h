// Weights: the parameters of a model in device memory, and how they are loaded.
//
// One list of expected tensors, made from the configuration alone, drives the memory plan, loading,
// dummy weights and the check for missing, extra and mis-shaped tensors. The kinds of layers add
// their tensors to it (model/weight_layout.h). Thread rule: the engine's thread.
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
#include "model/experts/expert_layer.h"
#include "model/model_config.h"
#include "model/weight_layout.h"
#include "ops/matmul/matmul.h"

namespace sluice {

// Parameters of one layer.
struct LayerWeights {
  TensorView input_norm;  // bf16 [hidden]
  WeightsOf<TokenMixer> mixer;
  TensorView post_norm;  // bf16 [hidden]
  WeightsOf<Mlp> mlp;
};

// The memory of experts' weights; all others are in device memory.
enum class ExpertPlace { kDevice, kPinned };

class Weights {
 public:
  // Takes the memory. Contents are undefined until `load` or `fill_dummy` returns. `on_progress`
  // reports the bytes that are pinned. Errors: kDoesNotFit; those that on_progress throws.
  Weights(const ModelConfig& config, Device& device, ExpertPlace place = ExpertPlace::kDevice,
          const AllocationProgress& on_progress = nullptr);

  // Bytes of memory that the constructor takes.
  struct MemoryBytes {
    size_t device = 0;
    size_t pinned = 0;
  };
  static MemoryBytes memory_bytes(const ModelConfig& config, Device& device, ExpertPlace place);
  // The bytes with experts in pinned memory, and the layers with experts, without their memory.
  // With experts on the device it takes the sum of both.
  struct Plan {
    MemoryBytes bytes;
    std::vector<ExpertLayer> experts;
  };
  static Plan plan(const ModelConfig& config, Device& device);

  // Bytes of all tensors in their formats, scales included; device memory takes more (packing, head
  // padding). `active` are those that one row needs, of the experts those that it chooses.
  struct StoredBytes {
    size_t all = 0;
    size_t active = 0;
  };
  static StoredBytes stored_bytes(const ModelConfig& config, Device& device);

  // Compares names and shapes of a checkpoint with the configuration. Reads file headers only, and
  // biases of quantized modules without one, which must be 0. Errors: kModel for a missing, extra
  // or mis-shaped tensor, naming it.
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

  // The layers with experts.
  std::vector<ExpertLayer> experts() const;
  const LayerWeights& layer(LayerId id) const { return layers_[static_cast<size_t>(id.value)]; }
  const PackedWeight& embedding() const { return embedding_; }
  const PackedWeight& lm_head() const { return lm_head_; }  // the embedding when they are tied
  const TensorView& final_norm() const { return final_norm_; }

 private:
  void lay_out(Arena& arena, Arena& expert_arena, Device& device);
  // With arenas without memory, which count.
  MemoryBytes lay_out_plan(Device& device, ExpertPlace place);
  void lay_out_layer(WeightLayout& layout, int32_t index);
  explicit Weights(const ModelConfig& config) : config_(config) {}  // for planning
  void check_names(const Checkpoint& checkpoint) const;
  // Of all that `load` reads.
  uint64_t checkpoint_bytes(const Checkpoint& checkpoint) const;

  ModelConfig config_;
  Buffer memory_;         // all views below point into these two
  Buffer expert_memory_;  // pinned; empty if experts are on the device
  std::vector<LayerWeights> layers_;
  PackedWeight embedding_;
  PackedWeight lm_head_;
  TensorView final_norm_;
  std::vector<WeightSource> sources_;  // every expected tensor, in the order of loading
};

}  // namespace sluice
