// Products with weights in e4m3 (WeightFormat): codes row by row, then scales (E4m3ScaleLayout).
//
// Up to 16 rows of x the codes are converted in registers. For more, the library multiplies e4m3 by
// e4m3 where it can (matmul/quantize_rows.h), else parts of the weight that become bf16 in a
// scratch. Used by matmul/matmul.cc. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/matmul/matmul.h"
#include "ops/rows/activation.h"

namespace sluice {

class CudaStream;

namespace cuda {

// Where the scales of a weight begin (E4m3ScaleLayout).
inline float* e4m3_scales(const PackedWeight& weight) {
  const int64_t num_codes = (weight.num_rows * weight.num_cols + 15) / 16 * 16;
  return reinterpret_cast<float*>(weight.data + num_codes);
}

// REQUIRES: at most kMaxSkinnyRows rows; k is a multiple of 16; x and weight are aligned to 16
// bytes. A row's bits do not depend on the number of rows.
void matmul_skinny_e4m3(CudaStream& stream, const MatmulArgs& args);
// The same product with the gate, as gated_skinny.
void gated_skinny_e4m3(CudaStream& stream, const GatedProductArgs& args);
// Any shape: slow, as matmul_any.
void matmul_any_e4m3(CudaStream& stream, const MatmulArgs& args);

}  // namespace cuda
}  // namespace sluice
