// Products with weights in GGUF's blocks (GgufLayout of op_memory.h).
//
// Up to 16 rows of x the codes become bf16 in registers, exactly, and the sums of a group of
// columns are multiplied by its values. For more rows parts of the weight become bf16 in a scratch,
// rounded once, and the library multiplies these. Used by matmul/matmul.cc and pack.cu. Thread
// rule: enqueue only.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/matmul/matmul.h"
#include "ops/rows/activation.h"

namespace sluice {

class CudaStream;

namespace cuda {

class MatmulState;

// pack_weight for such a weight. Host threads order the codes, as they come from the reader.
void pack_gguf(cudaStream_t handle, const PackWeightArgs& args, MatmulState& state);

// REQUIRES: at most kMaxSkinnyRows rows; x and weight are aligned to 16 bytes. A row's bits do not
// depend on the number of rows.
void matmul_skinny_gguf(CudaStream& stream, const MatmulArgs& args);
// The same product with the gate, as gated_skinny.
void gated_skinny_gguf(CudaStream& stream, const GatedProductArgs& args);
// Any shape: slow, as matmul_any.
void matmul_any_gguf(CudaStream& stream, const MatmulArgs& args);

}  // namespace cuda
}  // namespace sluice
