// BlockLru: a set of block ids in the order of their last use, with removal from the middle.
//
// Used by BlockManager for cached blocks. The links are an array indexed by block id: nothing is
// allocated after construction, and every operation is O(1), but for `insert`. Thread rule: one
// host thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/ids.h"

namespace sluice {

class BlockLru {
 public:
  explicit BlockLru(int32_t num_blocks) : links_(static_cast<size_t>(num_blocks)) {}

  bool contains(BlockId id) const { return link(id).linked; }
  int32_t size() const { return size_; }

  // The id that was used longest ago. REQUIRES: size() > 0.
  BlockId oldest() const { return oldest_; }

  // From the other end: the id that was used last, and the one before `id`; invalid when there is
  // none.
  BlockId newest() const { return newest_; }
  BlockId older(BlockId id) const { return link(id).older; }

  // Makes this moment the last use of `id`. REQUIRES: it is not in the list.
  void use(BlockId id) {
    SLUICE_CHECK(!contains(id), "block {} is in the list", id.value);
    link(id).last_use = ++clock_;
  }
  bool is_newer(BlockId a, BlockId b) const { return link(a).last_use > link(b).last_use; }

  // Adds `id` at the place of its last use. Cost: O(ids in the list that were used after it).
  // REQUIRES: it is not in the list.
  void insert(BlockId id) {
    SLUICE_CHECK(!contains(id), "block {} is already in the list", id.value);
    BlockId newer;
    BlockId older = newest_;
    while (older.valid() && is_newer(older, id)) {
      newer = older;
      older = link(older).older;
    }
    link(id) = {.older = older, .newer = newer, .last_use = link(id).last_use, .linked = true};
    (older.valid() ? link(older).newer : oldest_) = id;
    (newer.valid() ? link(newer).older : newest_) = id;
    ++size_;
  }

  // Takes `id` out; its last use stays. REQUIRES: it is in the list.
  void remove(BlockId id) {
    SLUICE_CHECK(contains(id), "block {} is not in the list", id.value);
    const Link gone = link(id);
    (gone.older.valid() ? link(gone.older).newer : oldest_) = gone.newer;
    (gone.newer.valid() ? link(gone.newer).older : newest_) = gone.older;
    link(id) = {.older = BlockId(), .newer = BlockId(), .last_use = gone.last_use};
    --size_;
  }

 private:
  struct Link {
    BlockId older;
    BlockId newer;
    int64_t last_use = 0;
    bool linked = false;
  };

  const Link& link(BlockId id) const { return links_[static_cast<size_t>(id.value)]; }
  Link& link(BlockId id) { return links_[static_cast<size_t>(id.value)]; }

  std::vector<Link> links_;
  BlockId oldest_;
  BlockId newest_;
  int32_t size_ = 0;
  int64_t clock_ = 0;  // number of uses
};

}  // namespace sluice
