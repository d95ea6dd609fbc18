// Chooses the general kernel for a head_dim.
#include "ops/cuda/attention/prefill/sm80.h"

namespace sluice::cuda::sm80 {

cudaError_t launch_prefill(cudaStream_t stream, const PrefillParams& p,
                           const PrefillSelection& selection) {
  if (p.head_dim <= 64) return launch_prefill_d64(stream, p, selection);
  if (p.head_dim <= 128) return launch_prefill_d128(stream, p, selection);
  return launch_prefill_d256(stream, p, selection);
}

}  // namespace sluice::cuda::sm80
