// Hopper prefill attention for head_dim 128.
#include "ops/cuda/attention/prefill/sm90_launch.cuh"

namespace sluice::cuda::sm90 {

cudaError_t launch_prefill_d128(cudaStream_t stream, const PrefillParams& p,
                                const PrefillSelection& selection, const CUtensorMap& kv_map,
                                const CUtensorMap* column_map) {
  return launch_head_dim<128>(stream, p, selection, kv_map, column_map);
}

}  // namespace sluice::cuda::sm90
