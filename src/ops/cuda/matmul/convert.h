// Weights in codes become bf16 in a scratch, where products of many rows read them.
//
// Used by matmul/matmul.cc and experts/experts.cc. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/matmul/packed_weight.h"

namespace sluice {

class CudaStream;

namespace cuda {

// Rows [row_begin, row_begin + num_rows) of each of some weights, of one shape and format.
struct ConvertArgs {
  PackedWeight weight;  // the first one
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  std::byte* to = nullptr;  // bf16 [num_weights][num_rows][weight.num_cols]
  int32_t num_weights = 1;  // at most 65535
  size_t stride_bytes = 0;  // from a weight to the next
};

// The number that a code stands for, rounded to bf16, to nearest.
// REQUIRES: a format that is not bf16; columns in multiples of 8, in e4m3 of 16 or `to` aligned to
// 16 bytes.
void convert_to_bf16(CudaStream& stream, const ConvertArgs& args);

// Its kernels, by format (matmul/e4m3.cu, integers.cu, gguf.cu).
void convert_e4m3(CudaStream& stream, const ConvertArgs& args);
void convert_integers(CudaStream& stream, const ConvertArgs& args);
void convert_gguf(CudaStream& stream, const ConvertArgs& args);

}  // namespace cuda
}  // namespace sluice
