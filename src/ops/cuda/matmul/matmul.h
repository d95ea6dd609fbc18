// The memory that matrix products keep for a stream. The products themselves are in matmul.cc
// (CudaOps).
//
// Used by cuda_ops.cc and ops/cuda/matmul. Thread rule: the thread that enqueues on the stream.
#pragma once

#include <cstddef>

namespace sluice {

class CudaStream;

namespace cuda {

// Device memory that products of one stream keep: what NVIDIA recommends for Hopper.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;

// Creates the library's handle and its workspace now instead of in the first large product.
void prepare_matmul(CudaStream& stream);

}  // namespace cuda
}  // namespace sluice
