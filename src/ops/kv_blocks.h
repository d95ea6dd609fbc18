// KvBlockShape and KvBlocksView: the layout of one KV block, and where the blocks of a layer lie.
//
// A block holds `block_tokens` tokens of one layer as [kv_head][K,V][block_tokens][head_dim]. The
// bytes are the same on host and device, so moving a block is one contiguous copy, and a page of
// one KV head is contiguous inside it. kv/ owns the memory; ops read and write it through these
// views. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/kv_element.h"

namespace sluice {

inline constexpr int32_t kKvScaleTile = 16;  // tokens whose scales lie together: kAttentionTile

// The keys, or the values, of one KV head in a block, or in a page. Units: bytes.
//
// An element with scales, one for each key and value of a head, keeps those of kKvScaleTile tokens
// behind the rows of these tokens: pages are whole tiles and thus stay contiguous, a half is still
// num_tokens * token_bytes() long, and a tile begins at a multiple of 16 bytes.
struct KvHalf {
  KvElement element = KvElement::kBFloat16;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;

  // Of one token: its numbers, and all of it.
  size_t row_bytes() const { return static_cast<size_t>(head_dim) * kv_element_bytes(element); }
  size_t token_bytes() const { return row_bytes() + kv_scale_bytes(element); }
  size_t bytes() const { return static_cast<size_t>(block_tokens) * token_bytes(); }
  // From the begin of the half to the numbers of one of its tokens, and to their scale.
  size_t row_offset(int32_t token) const {
    const auto in_tile = static_cast<size_t>(token % kKvScaleTile);
    return (static_cast<size_t>(token) - in_tile) * token_bytes() + in_tile * row_bytes();
  }
  // REQUIRES: an element with scales.
  size_t scale_offset(int32_t token) const {
    const auto in_tile = static_cast<size_t>(token % kKvScaleTile);
    return (static_cast<size_t>(token) - in_tile) * token_bytes() + kKvScaleTile * row_bytes() +
           in_tile;
  }
};

// The shape of one block, which has no gaps inside: all sizes and offsets of KV come from here.
struct KvBlockShape {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  KvElement element = KvElement::kBFloat16;
  // Keys are bf16 whatever the element of values is: those of models whose keys have a bias.
  bool keys_in_bf16 = false;

  // Whether pages of one shape can be copied to the other: all is equal but block_tokens.
  bool has_rows_of(const KvBlockShape& other) const {
    return num_kv_heads == other.num_kv_heads && head_dim == other.head_dim &&
           element == other.element && keys_in_bf16 == other.keys_in_bf16;
  }
  bool operator==(const KvBlockShape&) const = default;

  KvHalf keys() const {
    return {keys_in_bf16 ? KvElement::kBFloat16 : element, head_dim, block_tokens};
  }
  KvHalf values() const { return {element, head_dim, block_tokens}; }

  // Units: bytes. Keys and values of one head, also of a page, whose shape has fewer tokens; and of
  // all heads, the unit of every transfer.
  size_t head_bytes() const { return keys().bytes() + values().bytes(); }
  size_t block_bytes() const { return static_cast<size_t>(num_kv_heads) * head_bytes(); }

  // Units: bytes from the begin of a block to the key, or the value, of one of its tokens.
  size_t key_offset(int32_t kv_head, int32_t token = 0) const {
    return static_cast<size_t>(kv_head) * head_bytes() + keys().row_offset(token);
  }
  // The values of a head follow its keys.
  size_t value_offset(int32_t kv_head, int32_t token = 0) const {
    return static_cast<size_t>(kv_head) * head_bytes() + keys().bytes() +
           values().row_offset(token);
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
  std::byte* block(int32_t index) const { return base + static_cast<size_t>(index) * stride_bytes; }
  // The keys, or the values, of a KV head from token `token` of the block on. REQUIRES: as above,
  // and that T is the type of their element (expect_kv_element).
  template <typename T>
  T* keys(int32_t index, int32_t kv_head, int32_t token = 0) const {
    return reinterpret_cast<T*>(block(index) + shape.key_offset(kv_head, token));
  }
  template <typename T>
  T* values(int32_t index, int32_t kv_head, int32_t token = 0) const {
    return reinterpret_cast<T*>(block(index) + shape.value_offset(kv_head, token));
  }
};

// What a block is made of: "bf16", "fp8_e4m3", or "bf16 keys, fp8_e4m3 values".
std::string kv_block_element_name(const KvBlockShape& shape);

// Called by everything that interprets the elements of blocks, once before a launch, with those
// that it can, also beside keys in bf16 if it `takes_bf16_keys`. What only moves blocks takes any
// element.
// Errors: kUnsupported naming `op` and the element, if it is another one.
void expect_kv_element(std::string_view op, const KvBlockShape& shape,
                       std::initializer_list<KvElement> has_kernels, bool takes_bf16_keys = false);

// The key, or the value, of a token and KV head in memory of the host, whatever its element is:
// head_dim numbers. For traces and tests: slow.
void copy_key(const KvBlocksView& kv, int32_t index, int32_t kv_head, int32_t token,
              std::span<BFloat16> to);
void copy_value(const KvBlocksView& kv, int32_t index, int32_t kv_head, int32_t token,
                std::span<BFloat16> to);

}  // namespace sluice
