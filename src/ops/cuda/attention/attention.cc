// Chooses between the kernels for one row of a sequence and those for many.
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention/decode/decode.h"
#include "ops/cuda/attention/prefill/prefill.h"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {

// The rule looks at nothing else, so that a decode step has the same bits whatever its batch, its
// group and the length of its history.
void CudaOps::attention(Stream& on, const AttentionArgs& args) const {
  CudaStream& stream = as_cuda(on);
  if (args.batch.max_rows == 1) {
    decode_attention(stream, args);
  } else {
    prefill_attention(stream, args);
  }
}

}  // namespace sluice::cuda
