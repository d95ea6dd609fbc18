// The inner loops of the element-wise ops for every CPU. Thread rule: see rows/kernels.h.
#include "ops/cpu/rows/kernels_impl.h"

namespace sluice {

const RowKernels& row_kernels_portable() { return kKernels; }

}  // namespace sluice
