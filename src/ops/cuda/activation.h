// SwiGLU and row gathering on CUDA.
//
// Called by cuda/cuda_ops only; the contract is ops/activation.h. Shapes were checked before this
// point. Thread rule: enqueue only.
#pragma once

#include "ops/activation.h"

namespace sluice {

class CudaStream;

namespace cuda {

void swiglu(CudaStream& stream, const SwigluArgs& args);
void gather_rows(CudaStream& stream, const GatherRowsArgs& args);

}  // namespace cuda
}  // namespace sluice
