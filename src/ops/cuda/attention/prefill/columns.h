// Decides which columns beside a tile mask each query tile attends, before prefill attention.
//
// Used by attention/prefill/prefill.cc. Thread rule: host thread, enqueue only.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/attention/prefill/params.h"

namespace sluice::cuda {

// Bytes of scratch that the results of find_columns need.
size_t found_columns_bytes(const PrefillMask& mask, const PrefillColumns& columns);

// Lets the results of find_columns lie in `scratch`, aligned to 16 bytes.
void place_found_columns(const PrefillMask& mask, std::byte* scratch, PrefillColumns& columns);

// For each query tile and list head: the tiles of kMaskTileTokens columns of which some row keeps
// one, in ascending order, and a bit for each of their columns that is before kv_end, not after the
// query tile's last row, and not in a tile that the mask has set. With zones of keys a
// tile is visited for each zone of its columns alone.
// REQUIRES: the call has one sequence; place_found_columns.
// Cost: a kernel of one CTA for each query tile and list head; some microseconds.
cudaError_t find_columns(cudaStream_t stream, const PrefillParams& p, const PrefillMask& mask,
                         const PrefillColumns& columns);

}  // namespace sluice::cuda
