// What a build without sm_90a links in place of the Hopper kernels: it reports that they are absent
// and is never launched.
#include "ops/cuda/attention/prefill/sm90.h"

namespace sluice::cuda::sm90 {

int32_t tile_tokens(int32_t, int32_t) { return 0; }

cudaError_t launch_prefill(cudaStream_t, const PrefillParams&, const PrefillLists*,
                           const CUtensorMap&) {
  return cudaErrorNoKernelImageForDevice;
}

}  // namespace sluice::cuda::sm90
