// Chooses the inner loops of the gated delta rule.
#include "ops/cpu/delta/kernels.h"

#include "device/cpu/cpu_features.h"

namespace sluice {

const DeltaKernels& delta_kernels(CpuIsa isa) {
  if (isa >= CpuIsa::kAvx512) return delta_kernels_avx512();
  if (isa >= CpuIsa::kAvx2) return delta_kernels_avx2();
  return delta_kernels_portable();
}

}  // namespace sluice
