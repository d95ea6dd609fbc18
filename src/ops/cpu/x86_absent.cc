// Linked instead of the kernels for ISAs of x86 on other processors, where none of these names is
// chosen (`detected_isa` is kScalar): each stands for the portable kernel.
#include "ops/cpu/attention/kernel.h"
#include "ops/cpu/delta/kernels.h"
#include "ops/cpu/matmul/kernel.h"
#include "ops/cpu/pages/kernels.h"
#include "ops/cpu/rows/kernels.h"
#include "ops/cpu/tiles/kernels.h"

namespace sluice {

const AttentionKernel& attention_kernel_avx2() { return attention_kernel_scalar(); }
const AttentionKernel& attention_kernel_avx512() { return attention_kernel_scalar(); }
const AttentionKernel& attention_kernel_amx() { return attention_kernel_scalar(); }

const MatmulKernel& matmul_kernel_avx2() { return matmul_kernel_scalar(); }
const MatmulKernel& matmul_kernel_avx512() { return matmul_kernel_scalar(); }
const MatmulKernel& matmul_kernel_amx() { return matmul_kernel_scalar(); }

const DeltaKernels& delta_kernels_avx2() { return delta_kernels_portable(); }
const DeltaKernels& delta_kernels_avx512() { return delta_kernels_portable(); }

const PageKernels& page_kernels_avx2() { return page_kernels_portable(); }

const RowKernels& row_kernels_avx2() { return row_kernels_portable(); }
const RowKernels& row_kernels_avx512() { return row_kernels_portable(); }

const TileKernels& tile_kernels_avx2() { return tile_kernels_portable(); }
const TileKernels& tile_kernels_avx512() { return tile_kernels_portable(); }

}  // namespace sluice
