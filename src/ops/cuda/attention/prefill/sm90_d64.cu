// Hopper prefill attention for head_dim 64.
#include "ops/cuda/attention/prefill/sm90_launch.cuh"

namespace sluice::cuda::sm90 {

cudaError_t launch_prefill_d64(cudaStream_t stream, const PrefillParams& p,
                               const PrefillSelection& selection, const CUtensorMap& kv_map,
                               const CUtensorMap* column_map) {
  return launch_head_dim<64>(stream, p, selection, kv_map, column_map);
}

}  // namespace sluice::cuda::sm90
