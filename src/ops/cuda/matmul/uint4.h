// Products with weights in integers of 4 bits (Uint4Layout of op_memory.h).
//
// Up to 16 rows of x the integers become bf16 in registers, exactly, and the sum over a group of
// columns is multiplied by its scale. For more rows parts of the weight become bf16 in a scratch,
// rounded once, and the library multiplies these. Used by matmul/matmul.cc and pack.cu. Thread
// rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/matmul/matmul.h"
#include "ops/rows/activation.h"

namespace sluice {

class CudaStream;

namespace cuda {

class MatmulState;

// pack_weight for such a weight. Host threads order the integers, as they come from the reader.
void pack_uint4(cudaStream_t handle, const PackWeightArgs& args, MatmulState& state);

// REQUIRES: at most kMaxSkinnyRows rows; k is a multiple of 8; x and weight are aligned to 16
// bytes. A row's bits do not depend on the number of rows.
void matmul_skinny_uint4(CudaStream& stream, const MatmulArgs& args);
// The same product with the gate, as gated_skinny.
void gated_skinny_uint4(CudaStream& stream, const GatedProductArgs& args);
// Any shape: slow, as matmul_any.
void matmul_any_uint4(CudaStream& stream, const MatmulArgs& args);

}  // namespace cuda
}  // namespace sluice
