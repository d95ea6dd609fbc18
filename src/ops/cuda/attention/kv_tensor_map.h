// Tensor maps of KV blocks: the descriptors with which Hopper's copy engine addresses them.
//
// Used by attention kernels of sm_90a. Thread rule: host thread.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "ops/kv_blocks.h"

namespace sluice::cuda {

// Whether the copy engine can reach these blocks: they begin at multiples of 16 bytes.
bool has_kv_tensor_map(const KvBlocksView& kv);

// Describes `kv` as [block][kv_head * 2 + (0 for K, 1 for V)][token][channel]. Its boxes are
// `box_tokens` tokens by 64 channels, swizzled by 128 bytes.
// REQUIRES: has_kv_tensor_map(kv), num_blocks > 0, head_dim a multiple of 64, box_tokens <= 256.
// Cost: a driver call on the host; the map is a value and is passed as a kernel parameter.
// Errors: throws kDevice with what the driver says.
CUtensorMap make_kv_tensor_map(const KvBlocksView& kv, int32_t box_tokens);

}  // namespace sluice::cuda
