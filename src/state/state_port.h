// StatePort: the bytes of snapshots of recurrent states, for what keeps them elsewhere.
//
// A StatePool, or the pools of several ranks (engine/ranks/rank_states.h); used by engine/store.
// Thread rule: the engine's thread; the memory of `layers` is other threads' while a snapshot is
// held.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/ids.h"

namespace sluice {

class StatePort {
 public:
  virtual ~StatePort() = default;

  // The bytes of a snapshot, layer by layer, in one order each time. Waits until what was saved is
  // there, and what was restored is read. Errors: kDevice.
  virtual std::vector<std::span<std::byte>> layers(SnapshotId place) = 0;
};

}  // namespace sluice
