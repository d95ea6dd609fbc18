// Finds the kernels of a device: the one place that knows which backends exist.
#include "ops/ops.h"

#include "ops/cpu/cpu_ops.h"

namespace sluice {

const Ops& ops_of(const Device& device) {
  SLUICE_CHECK(device.kind() == DeviceKind::kCpu, "this build has kernels for the CPU only");
  static const CpuOps cpu_ops;
  return cpu_ops;
}

}  // namespace sluice
