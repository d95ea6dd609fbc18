// Chooses the inner loops of the element-wise ops.
#include "ops/cpu/rows/kernels.h"

#include "device/cpu/cpu_features.h"

namespace sluice {

const RowKernels& row_kernels(CpuIsa isa) {
  if (isa >= CpuIsa::kAvx512) return row_kernels_avx512();
  if (isa >= CpuIsa::kAvx2) return row_kernels_avx2();
  return row_kernels_portable();
}

}  // namespace sluice
