#include "engine/plan/weight_kernels.h"

#include "core/error.h"

namespace sluice {

void require_kernels(const ModelConfig& config, const Device& device) {
  if (device.kind() != DeviceKind::kCuda) return;
  if (config.quantization.present()) {
    fail(ErrorCode::kUnsupported,
         "the weights are in FP8, for which there are no kernels on a GPU yet; take the model in "
         "BF16, or --device cpu");
  }
}

}  // namespace sluice
