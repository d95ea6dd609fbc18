// SlotContents: what a slot of the ring has, for views of the engine.
//
// Made by HostLoader as loads are enqueued, which may be layers ahead of what compute reads. Thread
// rule: values.
#pragma once

#include <vector>

#include "core/ids.h"

namespace sluice {

struct SlotContents {
  // While something loads the slot or is going to read it.
  bool is_held = false;
  LayerId layer;                // none: the slot was never loaded
  std::vector<BlockId> blocks;  // in order of position; of a slot that is not held, the last ones
  // The slot was filled with listed pages, of which only the device knows; `blocks` is empty.
  bool has_pages = false;
};

}  // namespace sluice
