// Launches one configuration of the Hopper prefill kernel; included by its instantiations.
#pragma once

#include "ops/cuda/attention_prefill_sm90.cuh"

namespace sluice::cuda::sm90 {

template <typename C>
cudaError_t launch(cudaStream_t stream, const PrefillParams& p, const CUtensorMap& kv_map) {
  // Once per launch, since it belongs to the current device; it costs less than a microsecond.
  const cudaError_t status = cudaFuncSetAttribute(
      prefill_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<C>());
  if (status != cudaSuccess) return status;
  const int num_blocks = (p.num_tiles + p.tiles_per_cta - 1) / p.tiles_per_cta;
  prefill_kernel<C><<<num_blocks, C::kNumThreads, shared_bytes<C>(), stream>>>(p, kv_map);
  return cudaGetLastError();
}

template <int kHeadDim>
cudaError_t launch_head_dim(cudaStream_t stream, const PrefillParams& p,
                            const CUtensorMap& kv_map) {
  return tile_tokens(kHeadDim, p.block_tokens) == 128
             ? launch<Config<kHeadDim, 128>>(stream, p, kv_map)
             : launch<Config<kHeadDim, 64>>(stream, p, kv_map);
}

}  // namespace sluice::cuda::sm90
