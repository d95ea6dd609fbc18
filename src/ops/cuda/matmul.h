// Matrix products and weight packing on CUDA.
//
// Called by cuda/cuda_ops only; the contracts are ops/matmul.h and
// ops/activation.h. Shapes were checked before this
// point. A packed weight is the matrix itself, row by row, in bf16. Thread rule: enqueue only.
#pragma once

#include <cstddef>

#include "ops/activation.h"
#include "ops/matmul.h"

namespace sluice {

class CudaStream;

namespace cuda {

// Device memory that products of one stream keep: what NVIDIA recommends for Hopper.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;

// Makes what the first large product of a stream would: the library's handle and its workspace.
void prepare_matmul(CudaStream& stream);

size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols);

// Order: unlike on the CPU device, `src` has been read when this returns; the host's threads copy
// it piece by piece into pinned memory.
void pack_weight(CudaStream& stream, const PackWeightArgs& args);

// Up to 16 rows go to a kernel of our own, bound by reading the weight, where a row's bits do not
// depend on how many rows come with it; more rows go to cuBLASLt.
// Order: the first product of a stream allocates (ops/cuda/cublaslt_matmul.h), so it cannot be
// captured in a graph.
void matmul(CudaStream& stream, const MatmulArgs& args);

// One kernel for up to 16 rows, of the same promise; more rows get `matmul` and `swiglu`.
void gated_product(CudaStream& stream, const GatedProductArgs& args);

}  // namespace cuda
}  // namespace sluice
