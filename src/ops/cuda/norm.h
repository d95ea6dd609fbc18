// RMSNorm on CUDA.
//
// Called by cuda/cuda_ops only; the contract is ops/norm.h. Shapes were checked before this point.
// Thread rule: enqueue only.
#pragma once

#include "ops/norm.h"

namespace sluice {

class CudaStream;

namespace cuda {

void rms_norm(CudaStream& stream, const RmsNormArgs& args);

}  // namespace cuda
}  // namespace sluice
