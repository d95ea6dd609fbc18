// Chooses the table of kernels by the kind of the device.
#include "ops/ops.h"

#include "ops/cpu/cpu_ops.h"
#include "ops/cuda/cuda_ops_door.h"

namespace sluice {

const Ops& ops_of(const Device& device) {
  if (device.kind() == DeviceKind::kCuda) return cuda_ops();
  // One table for the process: best_isa() does not change. Tests make others of their own.
  static const cpu::CpuOps cpu_ops(best_isa());
  return cpu_ops;
}

size_t op_memory_bytes(const Device& device, const OpNeeds& needs) {
  return ops_of(device).memory_bytes(needs);
}

void prepare_ops(Stream& stream, const OpNeeds& needs) {
  ops_of(stream.device()).prepare(stream, needs);
}

}  // namespace sluice
