// Matrix products with few rows: bound by reading the weight once.
//
// Used by matmul/matmul.cc. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "ops/matmul/matmul.h"
#include "ops/rows/activation.h"

namespace sluice {

class CudaStream;

namespace cuda {

inline constexpr int64_t kMaxSkinnyRows = 16;  // the rows of a tensor-core product

// The division of the work; chosen by the weight's shape alone, so that the bits of a row do not
// depend on the number of rows.
struct SkinnyShape {
  int tiles = 1;  // of 8 weight rows, per block: 1 to 4
  int warps = 8;  // that share the sums over k: 4, 8 or 16; 12 with 2 tiles
};
SkinnyShape skinny_shape(int64_t n, int64_t k, int num_multiprocessors);

// The same for products with a gate: half of the tiles are gates.
SkinnyShape gated_shape(int64_t n, int64_t k, int num_multiprocessors);

// REQUIRES: at most kMaxSkinnyRows rows; k is a multiple of 8; x and weight are aligned to 16
// bytes.
void matmul_skinny(CudaStream& stream, const MatmulArgs& args, const SkinnyShape& shape);

// The same product with the gate: columns i and i + intermediate become column i of out.
void gated_skinny(CudaStream& stream, const GatedProductArgs& args, const SkinnyShape& shape);

// Any shape at any alignment, one warp per element of out: slow, for unusual shapes.
void matmul_any(CudaStream& stream, const MatmulArgs& args);

// out[i][j] += bias[j], for f32 output, to which the library cannot add a bf16 bias.
void add_bias(CudaStream& stream, const TensorView& bias, const TensorView& out);

}  // namespace cuda
}  // namespace sluice
