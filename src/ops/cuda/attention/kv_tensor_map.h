// Tensor maps: the descriptors with which Hopper's copy engine addresses KV blocks and other bf16
// tensors.
//
// Used by kernels of attention, tiles and experts of sm_90a. Thread rule: host thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "ops/kv_blocks.h"

namespace sluice::cuda {

// Describes a tensor of four or five dimensions, innermost first; its elements lie side by side.
// Boxes are swizzled by 128 bytes; what lies outside the tensor is copied as 0.
//   sizes: in elements; strides: in bytes, of all dimensions but the innermost, multiples of 16
//   box: its sizes in elements, at most 256, the innermost 64
// Cost: a driver call on the host; the map is a value and is passed as a kernel parameter.
// Errors: throws kDevice with what the driver says.
template <size_t kRank = 4>
CUtensorMap make_tensor_map(const void* base, const std::array<int64_t, kRank>& sizes,
                            const std::array<int64_t, kRank - 1>& strides,
                            const std::array<int32_t, kRank>& box);

// Whether the copy engine can reach these blocks: they begin at multiples of 16 bytes.
bool has_kv_tensor_map(const KvBlocksView& kv);

// Lines of a KV head in a map: keys and values, or, where only keys are bf16, keys alone.
inline int32_t lines_per_head(const KvBlockShape& shape) { return shape.keys_in_bf16 ? 1 : 2; }

// Describes `kv` as [block][kv_head * lines_per_head + (0 for K, 1 for V)][token][channel]. Its
// boxes are `box_tokens` tokens by 64 channels, swizzled by 128 bytes.
// REQUIRES: has_kv_tensor_map(kv), num_blocks > 0, head_dim a multiple of 64, box_tokens <= 256.
// Cost, errors: those of make_tensor_map.
CUtensorMap make_kv_tensor_map(const KvBlocksView& kv, int32_t box_tokens);

}  // namespace sluice::cuda
