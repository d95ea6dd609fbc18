// BlockNames: the store keys of the blocks in memory, by block id.
//
// Part of engine/store. A block has a name only if its KV is what prefill computes from its tokens,
// and so have all blocks before it: the bits that the name promises. A block that a sparse policy
// filled in decode has none, nor has any block after it, since attention has read it. Names of
// prefixes do not follow from names of the prefix cache, whose hash is drawn for each process.
// Thread rule: the engine's thread.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kv/sequence_kv.h"
#include "store/block_file.h"

namespace sluice {

class BlockNames {
 public:
  BlockNames(const StoreFormat& format, int32_t num_blocks)
      : format_(format), places_(static_cast<size_t>(num_blocks)) {}

  // Empty if the block has no name.
  const std::optional<BlockPlace>& find(BlockId id) const {
    return places_[static_cast<size_t>(id.value)];
  }
  void set(BlockId id, const BlockPlace& place) { places_[static_cast<size_t>(id.value)] = place; }
  void forget(BlockId id) { places_[static_cast<size_t>(id.value)].reset(); }

  // The place of block `index` of a sequence, whose ids are `tokens`; empty if the block before it
  // has no name. Cost: SHA-256 of the ids.
  std::optional<BlockPlace> place_after(const SequenceKv& kv, size_t index, std::string_view salt,
                                        std::span<const int32_t> tokens) const {
    StoreKey parent;
    if (index == 0) {
      parent = root_key(format_.fingerprint, salt);
    } else {
      const auto& before = find(kv.blocks()[index - 1].id);
      if (!before) return std::nullopt;
      parent = before->key;
    }
    return BlockPlace{.key = next_key(parent, tokens),
                      .parent = parent,
                      .position = static_cast<int64_t>(index) * format_.layout.block_tokens};
  }

 private:
  StoreFormat format_;
  std::vector<std::optional<BlockPlace>> places_;  // [num_blocks]
};

}  // namespace sluice
