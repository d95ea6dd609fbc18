// Sampling on CUDA.
//
// Called by cuda/cuda_ops only; the contract is ops/sample.h. Shapes were checked before this
// point. Thread rule: enqueue only.
#pragma once

#include "ops/sample.h"

namespace sluice {

class CudaStream;

namespace cuda {

void sample(CudaStream& stream, const SampleArgs& args);

}  // namespace cuda
}  // namespace sluice
