// Chooses the Hopper kernel for a head_dim and a block size.
#include "ops/cuda/attention/prefill/sm90.h"

namespace sluice::cuda::sm90 {

int32_t tile_tokens(int32_t head_dim, int32_t block_tokens) {
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) return 0;
  if (block_tokens % 128 == 0 && head_dim <= 128) return 128;
  return block_tokens % 64 == 0 ? 64 : 0;
}

cudaError_t launch_prefill(cudaStream_t stream, const PrefillParams& p,
                           const PrefillSelection& selection, const CUtensorMap& kv_map,
                           const CUtensorMap* column_map) {
  auto* launch = p.head_dim == 64    ? launch_prefill_d64
                 : p.head_dim == 128 ? launch_prefill_d128
                                     : launch_prefill_d256;
  return launch(stream, p, selection, kv_map, column_map);
}

}  // namespace sluice::cuda::sm90
