// Rows of x in e4m3 with scales, for products in which both factors are e4m3.
//
// Used by matmul/matmul.cc and experts/experts.cc. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {

class CudaStream;

namespace cuda {

// Codes [num_rows, k] and scales f32 [scales_per_row, num_rows] of some rows of x, as the format of
// the weight groups columns.
struct QuantizedRows {
  std::byte* codes = nullptr;
  float* scales = nullptr;
};

// Which rows of x become codes, where a mixture's pairs of row and slot have one each: row
// pairs[i] / num_slots. Without pairs all of them, in their order.
struct RowsOfPairs {
  const int32_t* pairs = nullptr;
  int32_t num_slots = 1;
  int64_t num_pairs = 0;
};

constexpr int64_t quantized_row_bytes(WeightFormat format, int64_t k) {
  return k + scales_per_row(format, k) * static_cast<int64_t>(sizeof(float));
}

// The largest magnitude of a row, or of 128 of its columns, becomes 448, the largest e4m3; numbers
// are rounded to nearest even. x: bf16 [num_rows, k].
// REQUIRES: k is a multiple of 128, x and codes are aligned to 16 bytes.
void quantize_rows(CudaStream& stream, WeightFormat format, const TensorView& x,
                   const QuantizedRows& to, const RowsOfPairs& from = {});

}  // namespace cuda
}  // namespace sluice
