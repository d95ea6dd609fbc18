// Attention on CUDA.
//
// Called by cuda/cuda_ops only; the contract is ops/attention.h. Shapes were checked before this
// point. Thread rule: enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/attention.h"

namespace sluice::cuda {

// Calls whose sequences have one row each take the decode kernels (attention_decode.h), all others
// the prefill kernels (attention_prefill.h). The rule looks at nothing else, so that a decode step
// has the same bits whatever its batch, its group and the length of its history.
void attention(CudaStream& stream, const AttentionArgs& args);

}  // namespace sluice::cuda
