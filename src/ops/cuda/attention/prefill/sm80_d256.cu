// General prefill attention for head_dim up to 256.
#include "ops/cuda/attention/prefill/sm80.cuh"

namespace sluice::cuda::sm80 {

cudaError_t launch_prefill_d256(cudaStream_t stream, const PrefillParams& p,
                                const PrefillSelection& selection) {
  return p.block_tokens % 32 == 0 ? launch_element<256, 32>(stream, p, selection)
                                  : launch_element<256, 16>(stream, p, selection);
}

}  // namespace sluice::cuda::sm80
