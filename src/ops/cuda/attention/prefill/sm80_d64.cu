// General prefill attention for head_dim up to 64.
#include "ops/cuda/attention/prefill/sm80.cuh"

namespace sluice::cuda::sm80 {

cudaError_t launch_prefill_d64(cudaStream_t stream, const PrefillParams& p,
                               const PrefillSelection& selection) {
  return p.block_tokens % 64 == 0 ? launch_element<64, 64>(stream, p, selection)
                                  : launch_element<64, 16>(stream, p, selection);
}

}  // namespace sluice::cuda::sm80
