// Linked instead of the Hopper kernels in a build without sm_90a: tile_tokens returns 0, so that
// launch_prefill is never called.
#include "ops/cuda/attention/prefill/sm90.h"

namespace sluice::cuda::sm90 {

int32_t tile_tokens(int32_t, int32_t) { return 0; }

cudaError_t launch_prefill(cudaStream_t, const PrefillParams&, const PrefillSelection&,
                           const CUtensorMap&, const CUtensorMap*) {
  return cudaErrorNoKernelImageForDevice;
}

cudaError_t launch_prefill_codes(cudaStream_t, const PrefillParams&) {
  return cudaErrorNoKernelImageForDevice;
}

}  // namespace sluice::cuda::sm90
