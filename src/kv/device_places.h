// DevicePlaces: the device memory of blocks that stay there with offloaded KV.
//
// Part of OffloadEngine. A place holds one block in every layer. The places of resident blocks
// (assigned by kv/resident_set.h) come first, then the tails; both share one allocation, so that
// attention reads a sequence that is completely on the device in one run. Thread rule: one host
// thread; access to the memory follows stream order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.h"
#include "kv/block_memory.h"

namespace sluice {

class DevicePlaces {
 public:
  DevicePlaces(Device& device, const KvLayout& layout, int32_t num_residents, int32_t num_tails)
      : num_residents_(num_residents), memory_(device, layout, num_residents + num_tails) {}

  // The places of one layer; entry i is place i. `residents` has those of resident blocks only.
  KvBlocksView all(LayerId layer) const { return memory_.layer(layer); }
  KvBlocksView residents(LayerId layer) const {
    KvBlocksView view = all(layer);
    view.num_blocks = num_residents_;
    return view;
  }
  // The tails of one layer; entry i is tail i.
  KvBlocksView tails(LayerId layer) const {
    KvBlocksView view = all(layer);
    view.base += static_cast<size_t>(num_residents_) * view.stride_bytes;
    view.num_blocks -= num_residents_;
    return view;
  }

  PlaceId place_of(TailId tail) const { return PlaceId(num_residents_ + tail.value); }
  std::byte* block(LayerId layer, PlaceId place) const { return all(layer).block(place.value); }
  std::byte* block(LayerId layer, TailId tail) const { return block(layer, place_of(tail)); }

  // From a place of one layer to the same place of the next.
  size_t layer_stride_bytes() const { return memory_.layer_stride_bytes(); }

 private:
  int32_t num_residents_;
  DevicePool memory_;
};

}  // namespace sluice
