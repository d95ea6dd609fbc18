// ResidentSet: which blocks of the host tier also lie on the device, so that they need not flow.
//
// Owned by OffloadEngine, which has the memory. A budget of device memory turns "offloaded or not"
// into a dial: with room for half of the blocks, half of the bytes flow. Every block here is on the
// host as well, so making room costs no transfer. The newest blocks and the first of each sequence
// stay longest: a block that comes in takes the place of the oldest one that begins no sequence.
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

  // Gives a block a place, perhaps another block's; not valid when there are no places. The copy is
  // complete, and is found, after `complete`. Until the caller's copy of a layer is enqueued, what
  // a pass in progress reads of the other block in that layer is still there.
  PlaceId admit(BlockId id, bool begins_sequence);
  void complete(BlockId id);
  // The place of a block that was admitted, complete or not; not valid when it has none.
  PlaceId place_of(BlockId id) const;

  // The block's contents are gone, and so is its place.
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
  std::deque<BlockId> order_;  // blocks that have a place, the one admitted first in front
};

}  // namespace sluice
