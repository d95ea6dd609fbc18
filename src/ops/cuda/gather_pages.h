// Gathering pages of pinned host memory on CUDA.
//
// Called by cuda/cuda_ops only; the contract is ops/gather_pages.h. Shapes were checked before this
// point. Thread rule: enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/gather_pages.h"

namespace sluice::cuda {

// A kernel reads the host memory through the bus, with few blocks, so that other kernels keep
// nearly all multiprocessors.
void gather_pages(CudaStream& stream, const GatherPagesArgs& args);

}  // namespace sluice::cuda
