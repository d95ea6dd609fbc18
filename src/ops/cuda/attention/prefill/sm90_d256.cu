// Hopper prefill attention for head_dim 256, whose tiles have 64 tokens in blocks of any size: two
// stages of 128 tokens and q would need 320 KiB. One copy of q instead of two costs the beginning
// of each tile of rows; a tile of 64 tokens has twice the products of one with 128 channels, so its
// exponentials and barriers weigh half as much.
#include "ops/cuda/attention/prefill/sm90_launch.cuh"

namespace sluice::cuda::sm90 {

cudaError_t launch_prefill_d256(cudaStream_t stream, const PrefillParams& p,
                                const PrefillSelection& selection, const CUtensorMap& kv_map,
                                const CUtensorMap* column_map) {
  return launch_tiles<256, 64>(stream, p, selection, kv_map, column_map);
}

}  // namespace sluice::cuda::sm90
