// PrefixIndex: finds the block that already holds the KV of a prompt prefix.
//
// Used by BlockManager only. Full blocks are keyed by a chained hash: hash(block) = XXH3 of its
// token ids, seeded with the hash of the block before it; the first block is seeded with a random
// number drawn per index, so that prompts cannot be made to collide. The hash only finds
// candidates: a hit also compares the token ids and the id of the prefix before them, so that a
// collision never returns a wrong block. Cost: 4 bytes per token (its id), far less than its KV.
// Nothing is allocated after construction. Each salt has an empty prefix of its own, so that
// prompts with different salts find nothing of each other.
// Thread rule: one host thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/ids.h"

namespace sluice {

// Names a token sequence of whole blocks. Equal ids mean the same tokens from position 0 on.
// One token sequence may get a new id after its block was evicted; ids are never used again.
struct Prefix {
  uint64_t hash = 0;  // seeds the hash of the next block
  int64_t id = 0;     // an empty prefix: 0, or negative with a salt
};

// A number for the salt of a request; requests with equal numbers share prefixes.
enum class CacheSalt : uint64_t { kNone = 0 };

// Hashes the token ids of one block, seeded with the hash of the prefix before it.
using BlockHasher = uint64_t (*)(uint64_t parent_hash, std::span<const int32_t> tokens);

uint64_t xxh3_block_hash(uint64_t parent_hash, std::span<const int32_t> tokens);

// A number for the empty prefix's hash, from the operating system's random source.
uint64_t draw_hash_seed();

class PrefixIndex {
 public:
  // Serves blocks 0 .. num_blocks - 1 of block_tokens tokens each.
  PrefixIndex(int32_t num_blocks, int32_t block_tokens, uint64_t seed,
              BlockHasher hasher = xxh3_block_hash);

  // The number of a salt; kNone for an empty text. Two texts have one number with a probability of
  // 2^-64: then their prompts find each other's blocks, which have the right KV all the same.
  CacheSalt salt(std::string_view text) const;

  // The empty prefix of a salt: the parent of its first blocks.
  Prefix root(CacheSalt salt = CacheSalt::kNone) const;

  // The block that holds `tokens` (exactly block_tokens of them) after `parent`; invalid when none.
  BlockId find(Prefix parent, std::span<const int32_t> tokens) const;

  // Enters block `id` as a holder of `tokens` after `parent` and returns the prefix that ends with
  // it. Blocks entered for the same tokens are twins: they share one prefix id, and `find` returns
  // the first.
  // REQUIRES: `id` is not entered.
  Prefix insert(BlockId id, Prefix parent, std::span<const int32_t> tokens);

  // Another block entered for the same tokens as `id`; invalid when there is none.
  // REQUIRES: `id` is entered.
  BlockId twin(BlockId id) const;

  // Forgets block `id`. REQUIRES: `id` is entered.
  void erase(BlockId id);

  bool contains(BlockId id) const { return entry(id).prefix.id != 0; }

  // The prefix that ends with block `id`, and the id of the one without it (0 or negative: `id` is
  // a first block). REQUIRES: `id` is entered.
  Prefix prefix(BlockId id) const;
  int64_t parent_id(BlockId id) const;

  // The ids of block `id`. REQUIRES: `id` is entered.
  std::span<const int32_t> tokens(BlockId id) const {
    SLUICE_CHECK(contains(id), "block {} is not entered", id.value);
    return tokens_of(id);
  }

  int32_t size() const { return size_; }

 private:
  // One per block; entries of one bucket are chained through `next`.
  struct Entry {
    Prefix prefix;          // id 0: not entered
    int64_t parent_id = 0;  // Prefix::id of what comes before
    BlockId next;
  };

  const Entry& entry(BlockId id) const { return entries_[static_cast<size_t>(id.value)]; }
  Entry& entry(BlockId id) { return entries_[static_cast<size_t>(id.value)]; }
  std::span<int32_t> tokens_of(BlockId id);
  std::span<const int32_t> tokens_of(BlockId id) const;
  size_t bucket(uint64_t hash) const { return hash & (heads_.size() - 1); }
  BlockId find_hashed(uint64_t hash, Prefix parent, std::span<const int32_t> tokens) const;

  int32_t block_tokens_;
  uint64_t seed_;
  BlockHasher hasher_;
  int32_t size_ = 0;
  int64_t last_id_ = 0;          // ids of prefixes are monotonic
  std::vector<Entry> entries_;   // [num_blocks]
  std::vector<int32_t> tokens_;  // [num_blocks][block_tokens]
  std::vector<BlockId> heads_;   // buckets; a power of two, at least 2 * num_blocks
};

}  // namespace sluice
