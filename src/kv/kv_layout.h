// KvLayout: the sizes in bytes of a block, a token and a pool of KV.
//
// Used by the memory plan (engine, `inspect`) and by the pools that allocate. The bytes of one
// block are defined in ops/kv_blocks.h; this adds the layers. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.h"
#include "ops/kv_blocks.h"
#include "sluice/kv_options.h"

namespace sluice {

inline constexpr int32_t kDefaultBlockTokens = 256;            // resident KV
inline constexpr int32_t kDefaultOffloadedBlockTokens = 1024;  // fewer, larger transfers

// The ids 0, 1, ... of layers. Not a view of <ranges>, which clang-tidy 14 cannot parse.
class LayerRange {
 public:
  class Iterator {
   public:
    explicit Iterator(int32_t index) : index_(index) {}
    LayerId operator*() const { return LayerId(index_); }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    int32_t index_;
  };

  explicit LayerRange(int32_t num_layers) : num_layers_(num_layers) {}
  Iterator begin() const { return Iterator(0); }
  Iterator end() const { return Iterator(num_layers_); }

 private:
  int32_t num_layers_;
};

// The element of blocks that an option asks for. `auto` is bf16 for every model: what is asked for
// by default never changes answers.
constexpr KvElement kv_element_of(KvCacheDtype dtype) {
  switch (dtype) {
    case KvCacheDtype::kAuto:
    case KvCacheDtype::kBFloat16:
      return KvElement::kBFloat16;
    case KvCacheDtype::kFp8:
    case KvCacheDtype::kFp8E4m3:
      return KvElement::kE4m3;
    case KvCacheDtype::kInt8:
      return KvElement::kInt8;
  }
  return KvElement::kBFloat16;
}

struct KvLayout {
  int32_t num_layers = 0;
  KvBlockShape block;

  // All layers in order, for a range-based for.
  LayerRange layers() const { return LayerRange(num_layers); }

  // Units: bytes of one block of one layer, of one block id (that block in every layer), and of one
  // token (K and V of every layer and KV head).
  size_t block_bytes() const { return block.block_bytes(); }
  size_t block_bytes_all_layers() const { return static_cast<size_t>(num_layers) * block_bytes(); }
  size_t token_bytes() const {
    return block_bytes_all_layers() / static_cast<size_t>(block.block_tokens);
  }
};

// Blocks that hold `num_tokens` tokens, the last one perhaps in part.
constexpr int64_t blocks_for_tokens(int64_t num_tokens, int32_t block_tokens) {
  return (num_tokens + block_tokens - 1) / block_tokens;
}

// The same memory as blocks of `page_tokens` tokens, for pages gathered from many blocks.
// REQUIRES: the blocks lie side by side; block_tokens is a multiple of page_tokens.
KvBlocksView as_pages(const KvBlocksView& blocks, int32_t page_tokens);

// Accepts a block size of kMinBlockTokens to kMaxBlockTokens that is a multiple of kAttentionTile,
// so that no softmax tile ever crosses a block.
// Errors: kInvalidArgument naming the option `block_size`, its value and the sizes that work.
void validate_block_tokens(int64_t block_tokens);

}  // namespace sluice
