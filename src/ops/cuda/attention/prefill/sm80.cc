// Chooses the general kernel for a head_dim.
#include "ops/cuda/attention/prefill/sm80.h"

namespace sluice::cuda::sm80 {

cudaError_t launch_prefill(cudaStream_t stream, const PrefillParams& p, const PrefillLists* lists) {
  if (p.head_dim <= 64) return launch_prefill_d64(stream, p, lists);
  if (p.head_dim <= 128) return launch_prefill_d128(stream, p, lists);
  return launch_prefill_d256(stream, p, lists);
}

}  // namespace sluice::cuda::sm80
