// Hopper prefill attention over KV in codes of one byte.
#include "ops/cuda/attention/prefill/sm90_codes.cuh"

namespace sluice::cuda::sm90 {

cudaError_t launch_prefill_codes(cudaStream_t stream, const PrefillParams& p) {
  return p.head_dim == 64 ? launch_codes_head_dim<64>(stream, p)
                          : launch_codes_head_dim<128>(stream, p);
}

}  // namespace sluice::cuda::sm90
