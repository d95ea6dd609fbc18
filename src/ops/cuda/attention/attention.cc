// Chooses between the kernels for one row per sequence (decode) and those for many (prefill).
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention/decode/decode.h"
#include "ops/cuda/attention/prefill/prefill.h"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {

// The choice depends on max_rows, and on a mask, which decode does not take; so a decode step has
// the same bits for every batch, group and length of history.
void CudaOps::attention(Stream& on, const AttentionArgs& args) const {
  expect_kv_element("attention", args.kv.shape,
                    {KvElement::kBFloat16, KvElement::kE4m3, KvElement::kInt8},
                    /*takes_bf16_keys=*/true);
  CudaStream& stream = as_cuda(on);
  if (args.batch.max_rows == 1 && masked_in(args.selection) == nullptr) {
    decode_attention(stream, args);
  } else {
    prefill_attention(stream, args);
  }
}

}  // namespace sluice::cuda
