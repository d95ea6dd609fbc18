// A hash table with chaining over arrays; entries are indexed by block id.
#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <random>

#include <xxhash.h>

#include "core/error.h"

namespace sluice {

uint64_t xxh3_block_hash(uint64_t parent_hash, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent_hash);
}

uint64_t draw_hash_seed() {
  std::random_device source;
  return (static_cast<uint64_t>(source()) << 32) | source();
}

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_tokens, uint64_t seed,
                         BlockHasher hasher)
    : block_tokens_(block_tokens),
      seed_(seed),
      hasher_(hasher),
      entries_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_tokens)),
      heads_(std::bit_ceil(2 * static_cast<size_t>(num_blocks))) {}

CacheSalt PrefixIndex::salt(std::string_view text) const {
  if (text.empty()) return CacheSalt::kNone;
  const uint64_t number = XXH3_64bits_withSeed(text.data(), text.size(), seed_);
  return CacheSalt(std::max<uint64_t>(number, 1));
}

Prefix PrefixIndex::root(CacheSalt salt) const {
  if (salt == CacheSalt::kNone) return {.hash = seed_, .id = 0};
  const auto number = static_cast<uint64_t>(salt);
  return {.hash = XXH3_64bits_withSeed(&number, sizeof number, seed_),
          .id = -1 - static_cast<int64_t>(number >> 1)};
}

BlockId PrefixIndex::find(Prefix parent, std::span<const int32_t> tokens) const {
  return find_hashed(hasher_(parent.hash, tokens), parent, tokens);
}

// Comparing the block's own tokens and `parent.id` is complete by induction: a prefix id names all
// tokens before the block.
BlockId PrefixIndex::find_hashed(uint64_t hash, Prefix parent,
                                 std::span<const int32_t> tokens) const {
  SLUICE_CHECK(std::ssize(tokens) == block_tokens_, "{} tokens", tokens.size());
  BlockId id = heads_[bucket(hash)];
  for (; id.valid(); id = entry(id).next) {
    const Entry& candidate = entry(id);
    if (candidate.prefix.hash == hash && candidate.parent_id == parent.id &&
        std::ranges::equal(tokens_of(id), tokens)) {
      break;
    }
  }
  return id;
}

Prefix PrefixIndex::insert(BlockId id, Prefix parent, std::span<const int32_t> tokens) {
  SLUICE_CHECK(!contains(id), "block {} is entered already", id.value);
  const uint64_t hash = hasher_(parent.hash, tokens);
  const BlockId first = find_hashed(hash, parent, tokens);
  const int64_t prefix_id = first.valid() ? entry(first).prefix.id : ++last_id_;
  // A twin goes after the first, so that `find` keeps returning the first.
  BlockId& link = first.valid() ? entry(first).next : heads_[bucket(hash)];
  entry(id) = {.prefix = {.hash = hash, .id = prefix_id}, .parent_id = parent.id, .next = link};
  link = id;
  std::ranges::copy(tokens, tokens_of(id).begin());
  ++size_;
  return entry(id).prefix;
}

BlockId PrefixIndex::twin(BlockId id) const {
  const Prefix own = prefix(id);
  BlockId other = heads_[bucket(own.hash)];
  while (other.valid() && (other == id || entry(other).prefix.id != own.id)) {
    other = entry(other).next;
  }
  return other;
}

void PrefixIndex::erase(BlockId id) {
  BlockId* link = &heads_[bucket(prefix(id).hash)];
  while (*link != id) link = &entry(*link).next;
  *link = entry(id).next;
  entry(id) = {};
  --size_;
}

Prefix PrefixIndex::prefix(BlockId id) const {
  SLUICE_CHECK(contains(id), "block {} is not entered", id.value);
  return entry(id).prefix;
}

int64_t PrefixIndex::parent_id(BlockId id) const {
  SLUICE_CHECK(contains(id), "block {} is not entered", id.value);
  return entry(id).parent_id;
}

std::span<int32_t> PrefixIndex::tokens_of(BlockId id) {
  const auto begin = static_cast<size_t>(id.value) * static_cast<size_t>(block_tokens_);
  return std::span(tokens_).subspan(begin, static_cast<size_t>(block_tokens_));
}

std::span<const int32_t> PrefixIndex::tokens_of(BlockId id) const {
  const auto begin = static_cast<size_t>(id.value) * static_cast<size_t>(block_tokens_);
  return std::span(tokens_).subspan(begin, static_cast<size_t>(block_tokens_));
}

}  // namespace sluice
