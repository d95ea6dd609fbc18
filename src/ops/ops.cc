// Finds the kernels of a device: the one place that knows which backends exist.
#include "ops/ops.h"

#include "ops/cpu/cpu_ops.h"
#include "ops/cuda/cuda_ops_door.h"

namespace sluice {

const Ops& ops_of(const Device& device) {
  if (device.kind() == DeviceKind::kCuda) return cuda_ops();
  static const CpuOps cpu_ops;
  return cpu_ops;
}

}  // namespace sluice
