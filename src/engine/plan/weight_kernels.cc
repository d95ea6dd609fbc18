#include "engine/plan/weight_kernels.h"

#include "core/error.h"

namespace sluice {

void require_kernels(const ModelConfig& config, const Device& device) {
  if (device.kind() != DeviceKind::kCuda || !config.quantization.present()) return;
  if (!has_experts(config.architecture)) return;
  fail(ErrorCode::kUnsupported,
       "{} is a mixture of experts in FP8, for which there are no kernels on a GPU yet; take the "
       "model in BF16, or --device cpu",
       architecture_name(config.architecture));
}

}  // namespace sluice
