// BlockLru: a set of block ids in the order they were added, with removal from the middle.
//
// Used by BlockManager for cached blocks. The links are an array indexed by block id: every
// operation is O(1), and nothing is allocated after construction. Thread rule: one host thread.
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

  // The id that was added longest ago. REQUIRES: size() > 0.
  BlockId oldest() const { return oldest_; }
  // The id added just after `id`; invalid when `id` is the newest.
  BlockId newer(BlockId id) const { return link(id).newer; }

  // The same from the other end: the id that was added last, and the one before `id`; invalid when
  // there is none.
  BlockId newest() const { return newest_; }
  BlockId older(BlockId id) const { return link(id).older; }

  // Adds `id` as the newest. REQUIRES: it is not in the list.
  void add(BlockId id) {
    SLUICE_CHECK(!contains(id), "block {} is already in the list", id.value);
    link(id) = {.older = newest_, .newer = BlockId(), .linked = true};
    (newest_.valid() ? link(newest_).newer : oldest_) = id;
    newest_ = id;
    ++size_;
  }

  // Takes `id` out. REQUIRES: it is in the list.
  void remove(BlockId id) {
    SLUICE_CHECK(contains(id), "block {} is not in the list", id.value);
    const Link gone = link(id);
    (gone.older.valid() ? link(gone.older).newer : oldest_) = gone.newer;
    (gone.newer.valid() ? link(gone.newer).older : newest_) = gone.older;
    link(id) = {};
    --size_;
  }

 private:
  struct Link {
    BlockId older;
    BlockId newer;
    bool linked = false;
  };

  const Link& link(BlockId id) const { return links_[static_cast<size_t>(id.value)]; }
  Link& link(BlockId id) { return links_[static_cast<size_t>(id.value)]; }

  std::vector<Link> links_;
  BlockId oldest_;
  BlockId newest_;
  int32_t size_ = 0;
};

}  // namespace sluice
