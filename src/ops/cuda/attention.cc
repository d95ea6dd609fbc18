// Chooses between the kernels for one row of a sequence and those for many.
#include "ops/cuda/attention.h"

#include "ops/cuda/attention_decode.h"
#include "ops/cuda/attention_prefill.h"

namespace sluice::cuda {

void attention(CudaStream& stream, const AttentionArgs& args) {
  if (args.batch.max_rows == 1) {
    decode_attention(stream, args);
  } else {
    prefill_attention(stream, args);
  }
}

}  // namespace sluice::cuda
