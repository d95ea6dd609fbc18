// choose_evictions: which stored blocks go when a directory is full.
//
// Used by block_store and `sluice store prune`. Thread rule: pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "store/block_file.h"
#include "store/store_key.h"

namespace sluice {

// A stored block of any fingerprint, or the states after one, which go before it: its key is their
// parent.
struct EvictionCandidate {
  std::string folder;  // of its fingerprint
  StoreKey key;
  std::optional<StoreKey> parent;  // empty: its header cannot be read
  uint64_t num_bytes = 0;
  int64_t used_ns = 0;
  bool is_pinned = false;
  StoredKind kind = StoredKind::kKv;
};

// Blocks of one fingerprint that a process has pinned.
struct PinnedBlocks {
  std::string folder;
  std::set<StoreKey> keys;
};

// A block that must stay, with all blocks before it: the parent of the one that is being written.
struct KeptChain {
  std::string folder;
  StoreKey last;
};

// Indices of blocks whose removal, in this order, frees at least `bytes_to_free`, or as much as may
// go: always the least recently used of the blocks without stored children, so that a prefix
// outlives its extensions however old it is. Pinned blocks go last, and blocks with a header that
// cannot be read first.
// Cost: O(n log n).
std::vector<size_t> choose_evictions(std::span<const EvictionCandidate> blocks,
                                     uint64_t bytes_to_free,
                                     const std::optional<KeptChain>& kept = {});

}  // namespace sluice
