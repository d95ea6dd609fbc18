// Hopper prefill attention over KV in e4m3.
#include "ops/cuda/attention/prefill/sm90_e4m3.cuh"

namespace sluice::cuda::sm90 {

cudaError_t launch_prefill_e4m3(cudaStream_t stream, const PrefillParams& p) {
  return p.head_dim == 64 ? launch_e4m3_head_dim<64>(stream, p)
                          : launch_e4m3_head_dim<128>(stream, p);
}

}  // namespace sluice::cuda::sm90
