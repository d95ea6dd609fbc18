// ResidentSet: which blocks of the host tier also lie on the device, so that they need not flow.
//
// Owned by OffloadEngine. A budget of device memory turns "offloaded or not" into a dial: with room
// for half of the blocks, half of the bytes flow. Every block here is on the host as well, so
// making room costs no transfer. The newest blocks and the first of each sequence stay longest: a
// block that comes in takes the place of the oldest one that begins no sequence. Thread rule: the
// engine's thread; the memory itself follows stream order.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/device_pool.h"
#include "kv/kv_layout.h"

namespace sluice {

class ResidentSet {
 public:
  // Takes num_places blocks of every layer of device memory; 0 takes none and keeps nothing.
  ResidentSet(Device& device, const KvLayout& layout, int32_t num_places, int32_t num_host_blocks);

  static size_t bytes(const KvLayout& layout, int32_t num_places) {
    return static_cast<size_t>(num_places) * layout.block_bytes_all_layers();
  }

  int32_t num_places() const { return num_places_; }

  // All places of one layer; the index is that of `find`. REQUIRES: num_places() > 0.
  KvBlocksView layer(int32_t layer_index) const { return memory_->layer(layer_index); }

  // The place of a block whose copy is complete; -1 when it has none.
  int32_t find(BlockId id) const;

  // Gives a block a place, perhaps another block's; -1 when there are no places. The copy is
  // complete, and is found, after `complete`. Until the caller's copy of a layer is enqueued, what
  // a pass in progress reads of the other block in that layer is still there.
  int32_t admit(BlockId id, bool begins_sequence);
  void complete(BlockId id);
  // The place of a block that was admitted, complete or not; -1 when it has none.
  int32_t place_of(BlockId id) const;

  // The block's contents are gone, and so is its place.
  void remove(BlockId id);

 private:
  struct Entry {
    int32_t place = -1;
    bool is_complete = false;
    bool begins_sequence = false;
  };

  Entry& entry(BlockId id) { return entries_[static_cast<size_t>(id.value)]; }
  const Entry& entry(BlockId id) const { return entries_[static_cast<size_t>(id.value)]; }
  void make_room();

  int32_t num_places_;
  std::optional<DevicePool> memory_;
  std::vector<Entry> entries_;  // of every host block; empty when there are no places
  std::vector<int32_t> free_places_;
  std::deque<BlockId> order_;  // blocks that have a place, the one admitted first in front
};

}  // namespace sluice
