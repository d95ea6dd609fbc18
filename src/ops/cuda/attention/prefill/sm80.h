// Launches prefill attention on any GPU from sm_80 on: every head_dim and block size of the op.
//
// Used by attention/prefill/prefill.cc only. Thread rule: host thread, enqueue only.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/attention/prefill/params.h"

namespace sluice::cuda::sm80 {

// Packed rows of one CTA.
inline constexpr int32_t kRowsPerTile = 64;

// `selection`: what the call selects.
cudaError_t launch_prefill(cudaStream_t stream, const PrefillParams& p,
                           const PrefillSelection& selection);

// One kernel each for head_dim up to 64, 128 and 256; launch_prefill chooses. KV tiles divide a
// block, so that no cut between blocks goes through a tile.
cudaError_t launch_prefill_d64(cudaStream_t stream, const PrefillParams& p,
                               const PrefillSelection& selection);
cudaError_t launch_prefill_d128(cudaStream_t stream, const PrefillParams& p,
                                const PrefillSelection& selection);
cudaError_t launch_prefill_d256(cudaStream_t stream, const PrefillParams& p,
                                const PrefillSelection& selection);

}  // namespace sluice::cuda::sm80
