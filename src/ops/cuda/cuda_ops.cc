// The table of CUDA ops, and the memory that they keep for a stream. The ops themselves are defined
// with their kernels.
#include "ops/cuda/cuda_ops.h"

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention/scratch.h"
#include "ops/cuda/cuda_ops_door.h"
#include "ops/cuda/matmul/matmul.h"

namespace sluice {

const Ops& cuda_ops() {
  static const cuda::CudaOps table;
  return table;
}

namespace cuda {

size_t CudaOps::memory_bytes(const OpNeeds& needs) const { return stream_memory_bytes(needs); }

void CudaOps::prepare(Stream& stream, const OpNeeds& needs) const {
  prepare_matmul(as_cuda(stream), converted_bytes(needs));
  prepare_attention(as_cuda(stream), kv_scratch_bytes(needs));
}

}  // namespace cuda
}  // namespace sluice
