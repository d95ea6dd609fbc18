// What matrix products keep for a stream. The products themselves are in matmul.cc (CudaOps).
//
// Used by cuda_ops and matmul_state. Thread rule: host thread.
#pragma once

#include <cstddef>

namespace sluice {

class CudaStream;

namespace cuda {

// Device memory that products of one stream keep: what NVIDIA recommends for Hopper.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;

// Makes what the first large product of a stream would: the library's handle and its workspace.
void prepare_matmul(CudaStream& stream);

}  // namespace cuda
}  // namespace sluice
