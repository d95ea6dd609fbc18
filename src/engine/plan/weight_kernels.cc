#include "engine/plan/weight_kernels.h"

#include "core/error.h"

namespace sluice {

void require_kernels(const ModelConfig& config, const Device& device) {
  if (device.kind() != DeviceKind::kCuda) return;
  if (has_experts(config.architecture)) {
    fail(ErrorCode::kUnsupported,
         "{} is a mixture of experts, for which there are no kernels on a GPU yet; take --device "
         "cpu, or a dense model",
         architecture_name(config.architecture));
  }
}

}  // namespace sluice
