// The inner loops of the element-wise ops for AVX2. Thread rule: see rows/kernels.h.
#include "ops/cpu/rows/kernels_impl.h"

namespace sluice {

const RowKernels& row_kernels_avx2() { return kKernels; }

}  // namespace sluice
