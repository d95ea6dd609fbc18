// Products with weights in integers of 4 and 8 bits (IntegerLayout of op_memory.h).
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
void pack_integers(cudaStream_t handle, const PackWeightArgs& args, MatmulState& state);

// Whether the kernels below, but for that of any shape, and the conversion take the orders of this
// weight's columns, if it has some: a row in bf16 fits shared memory.
bool has_order_kernels(CudaStream& stream, const PackedWeight& weight);

// REQUIRES: at most kMaxSkinnyRows rows; has_order_kernels; k is a multiple of 8; x and weight are
// aligned to 16 bytes. A row's bits do not depend on the number of rows.
void matmul_skinny_integers(CudaStream& stream, const MatmulArgs& args);
// The same product with the gate, as gated_skinny. REQUIRES: with orders, the gate has a multiple
// of kOrderRows columns.
void gated_skinny_integers(CudaStream& stream, const GatedProductArgs& args);
// Any shape: slow, as matmul_any.
void matmul_any_integers(CudaStream& stream, const MatmulArgs& args);

}  // namespace cuda
}  // namespace sluice
