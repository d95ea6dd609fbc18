// Rotary embedding on CUDA: angles once per pass, rotation and KV write once per layer.
//
// Called by cuda/cuda_ops only; the contract is ops/rope.h. Shapes were checked before this point.
// Thread rule: enqueue only.
#pragma once

#include "ops/rope.h"

namespace sluice {

class CudaStream;

namespace cuda {

void rope_angles(CudaStream& stream, const RopeAnglesArgs& args);

// REQUIRES: head_dim is a multiple of 16, as attention needs it too (checked).
void rope_and_write_kv(CudaStream& stream, const RopeAndWriteKvArgs& args);

}  // namespace cuda
}  // namespace sluice
