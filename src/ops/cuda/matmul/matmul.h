// The memory that matrix products keep for a stream. The products themselves are in matmul.cc
// (CudaOps).
//
// Used by cuda_ops.cc and ops/cuda/matmul. Thread rule: the thread that enqueues on the stream.
#pragma once

#include "ops/cuda/op_memory.h"

namespace sluice {

class CudaStream;

namespace cuda {

// Creates the library's handle and its workspace now instead of in the first large product, and
// takes the memory for weights in codes (converted_bytes).
void prepare_matmul(CudaStream& stream, size_t converted_bytes);

}  // namespace cuda
}  // namespace sluice
