#include "engine/plan/weight_kernels.h"

#include <variant>

#include "core/error.h"
#include "ops/ops.h"

namespace sluice {

namespace {

// With 8192 rows of 128 experts, 8 of them chosen, an expert has some four tiles, of which one is
// not full, and experts in codes become bf16 once in a pass of 8192 rows.
constexpr int64_t kExpertRowsOfGpu = 8192;

}  // namespace

void adapt_to_device(ModelConfig& config, const Device& device) {
  std::erase_if(config.quantization.gguf,
                [&](const auto& module) { return !ops_of(device).keeps_gguf(module.second); });
  if (device.kind() != DeviceKind::kCuda) return;
  for (LayerSpec& layer : config.layers) {
    if (auto* experts = std::get_if<ExpertMlp>(&layer.mlp)) {
      experts->rows_at_once = kExpertRowsOfGpu;
    }
  }
}

void require_kernels(const ModelConfig& config, const Device& device) {
  if (device.kind() != DeviceKind::kCuda) return;
  const StateLayout states = config.states();
  if (states.present() && states.shape.k_dim > kMaxCudaKDim) {
    fail(ErrorCode::kUnsupported,
         "linear_key_head_dim is {}, but the kernels on a GPU have keys of at most {} channels; "
         "take --device cpu",
         states.shape.k_dim, kMaxCudaKDim);
  }
}

}  // namespace sluice
