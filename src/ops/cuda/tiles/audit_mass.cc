// The audit of captured mass on CUDA: no kernel yet, and a clear error instead.
#include "core/error.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {

void CudaOps::audit_mass(Stream& stream, const AuditMassArgs&) const {
  fail(ErrorCode::kUnsupported, "audit_mass has no kernel on {} yet; use the CPU device",
       stream.device().info().name);
}

}  // namespace sluice::cuda
