// KvBlockShape and KvBlocksView: the layout of one KV block, and where the blocks of a layer lie.
//
// A block holds `block_tokens` tokens of one layer as [kv_head][K,V][block_tokens][head_dim] bf16.
// The bytes are the same on host and device, so moving a block is one contiguous copy, and a page
// of one KV head is contiguous inside it. kv/ owns the memory; ops read and write it through these
// views. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice {

// The shape of one block. Elements are bf16; a block has no gaps inside.
struct KvBlockShape {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;

  // Offsets in elements (not bytes) of the keys and values of one KV head inside a block.
  int64_t k_offset(int32_t kv_head) const {
    return static_cast<int64_t>(kv_head) * 2 * block_tokens * head_dim;
  }
  // The values of a head follow its keys.
  int64_t v_offset(int32_t kv_head) const {
    return k_offset(kv_head) + static_cast<int64_t>(block_tokens) * head_dim;
  }
  // Keys and values of all heads; the unit of every transfer.
  size_t block_bytes() const {
    return static_cast<size_t>(num_kv_heads) * 2 * block_tokens * head_dim * sizeof(BFloat16);
  }
};

// Blocks of one layer: of the pool, a ring slot, a stage, the resident blocks and tails, or of the
// pinned host tier. Block i starts at base + i * stride_bytes.
struct KvBlocksView {
  std::byte* base = nullptr;
  size_t stride_bytes = 0;
  int32_t num_blocks = 0;
  KvBlockShape shape;

  // REQUIRES: 0 <= index < num_blocks; not checked here, since it runs once per token and head.
  BFloat16* block(int32_t index) const {
    return reinterpret_cast<BFloat16*>(base + static_cast<size_t>(index) * stride_bytes);
  }
};

}  // namespace sluice
