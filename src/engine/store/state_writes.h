// StateWrites: brings snapshots of states to the store, after the blocks that they belong to.
//
// Part of KvStore, of a hybrid model. As WriteBehind, but a snapshot is in host memory already.
// What waits is not held: a snapshot or a block that goes meanwhile is skipped. Thread rule: the
// engine's thread.
#pragma once

#include <cstdint>
#include <deque>

#include "core/ids.h"
#include "engine/kv/state_snapshots.h"
#include "engine/store/block_names.h"
#include "engine/store/mailbox.h"
#include "engine/store/write_behind.h"
#include "kv/block_manager.h"
#include "state/state_port.h"
#include "store/store_writer.h"

namespace sluice {

class StateWrites {
 public:
  struct Parts {
    BlockManager& blocks;
    const BlockNames& names;
    const WriteBehind& writes;
    StateSnapshots& snapshots;
    StatePort& states;
    StoreWriter& writer;
    Mailbox& mailbox;
  };
  // States are large: two keep a disk busy.
  static constexpr size_t kMaxHeld = 2;

  // REQUIRES: as WriteBehind.
  explicit StateWrites(const Parts& parts) : parts_(parts) {}

  // Asks for the snapshot of `prefix`, which ends with `block`, to be stored.
  void add(BlockId block, int64_t prefix) { queue_.push_back({block, prefix}); }
  // Moves on as far as there is room.
  void pump();
  bool is_idle() const { return queue_.empty() && num_held_ == 0; }

 private:
  struct Wanted {
    BlockId block;
    int64_t prefix = 0;
  };

  bool is_there(const Wanted& wanted) const;
  void write(const Wanted& wanted);
  void written(const Wanted& wanted);

  Parts parts_;
  std::deque<Wanted> queue_;
  size_t num_held_ = 0;
};

}  // namespace sluice
