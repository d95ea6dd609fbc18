// ResidentSet: which blocks of the host tier have a copy on the device, so that they need no load.
//
// Owned by OffloadEngine, which has the memory. With places for half of the blocks, half of the
// bytes are transferred. Every resident block is on the host as well, so making room costs no
// transfer. The newest blocks and the first block of each sequence stay longest: a new block takes
// the place of the oldest one that begins no sequence.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/ids.h"

namespace sluice {

class ResidentSet {
 public:
  // Places 0 to num_places - 1 for blocks 0 to num_host_blocks - 1.
  ResidentSet(int32_t num_places, int32_t num_host_blocks);

  int32_t num_places() const { return num_places_; }

  // The place of a block whose copy is complete; not valid when it has none.
  PlaceId find(BlockId id) const;

  // Gives a block a place, perhaps that of another block, which then has none; not valid if
  // num_places() is 0. `find` returns it after `complete`. A pass in progress may still read the
  // other block in a layer until the caller enqueues its copy of that layer.
  PlaceId admit(BlockId id, bool begins_sequence);
  void complete(BlockId id);
  // The place of a block that was admitted, complete or not; not valid when it has none.
  PlaceId place_of(BlockId id) const;

  // Frees the place of a block whose contents are discarded; no effect without one.
  void remove(BlockId id);

 private:
  struct Entry {
    PlaceId place;
    bool is_complete = false;
    bool begins_sequence = false;
  };

  Entry& entry(BlockId id) { return entries_[static_cast<size_t>(id.value)]; }
  const Entry& entry(BlockId id) const { return entries_[static_cast<size_t>(id.value)]; }
  void make_room();

  int32_t num_places_;
  std::vector<Entry> entries_;  // of every host block; empty when there are no places
  std::vector<PlaceId> free_places_;
  std::deque<BlockId> order_;  // blocks that have a place, in order of admission
};

}  // namespace sluice
