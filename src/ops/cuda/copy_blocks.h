// Copying blocks of pinned host memory by a kernel on CUDA.
//
// Called by cuda/cuda_ops only; the contract is ops/copy_blocks.h. Shapes were checked before this
// point. Thread rule: enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/copy_blocks.h"

namespace sluice::cuda {

void copy_blocks(CudaStream& stream, const CopyBlocksArgs& args);

}  // namespace sluice::cuda
