// Launches prefill attention on Hopper (sm_90a).
//
// Used by attention/prefill/prefill.cc only; attention/prefill/sm90_absent.cc stands in where the
// build has no sm_90a. Thread rule: host thread, enqueue only.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/attention/prefill/params.h"

namespace sluice::cuda::sm90 {

// Packed rows of one CTA.
inline constexpr int32_t kRowsPerTile = 128;

// Bytes that one split tile leaves between its two parts (PrefillParams::num_split): per row the
// accumulator, and the maxima and sums of the threads that hold it.
constexpr size_t handed_over_bytes(int32_t head_dim) {
  return size_t{kRowsPerTile} * static_cast<size_t>(head_dim + 8) * sizeof(float);
}

// Tokens of a KV tile for blocks of this many tokens; 0 when this build has no kernel for them. A
// tile divides a block, so that no cut between blocks goes through a tile.
int32_t tile_tokens(int32_t head_dim, int32_t block_tokens);

// REQUIRES: tile_tokens(p.head_dim, p.block_tokens) > 0; `kv_map` describes p's blocks with boxes
// of one tile by 64 channels, swizzled by 128 bytes. `selection`: what the call selects.
// `column_map`: its columns likewise, as blocks of max_columns tokens, one a segment; null without.
cudaError_t launch_prefill(cudaStream_t stream, const PrefillParams& p,
                           const PrefillSelection& selection, const CUtensorMap& kv_map,
                           const CUtensorMap* column_map);

// The same for KV in codes with head_dim 64 or 128, where everything is attended (`selection` would
// be empty).
cudaError_t launch_prefill_codes(cudaStream_t stream, const PrefillParams& p);

// One head_dim each; launch_prefill chooses.
cudaError_t launch_prefill_d64(cudaStream_t stream, const PrefillParams& p,
                               const PrefillSelection& selection, const CUtensorMap& kv_map,
                               const CUtensorMap* column_map);
cudaError_t launch_prefill_d128(cudaStream_t stream, const PrefillParams& p,
                                const PrefillSelection& selection, const CUtensorMap& kv_map,
                                const CUtensorMap* column_map);
cudaError_t launch_prefill_d256(cudaStream_t stream, const PrefillParams& p,
                                const PrefillSelection& selection, const CUtensorMap& kv_map,
                                const CUtensorMap* column_map);

}  // namespace sluice::cuda::sm90
