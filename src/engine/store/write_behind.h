// WriteBehind: brings blocks to the store while the engine goes on.
//
// Part of KvStore. Few blocks are held at a time, those that move or are being written; the others
// wait unheld, first come first served, and may be evicted: then they are skipped, and counted.
// Blocks of the cache are evicted in about the order in which they came, so what will be missed
// first is written first. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/ids.h"
#include "engine/store/block_names.h"
#include "engine/store/mailbox.h"
#include "kv/block_manager.h"
#include "kv/block_port.h"
#include "store/store_writer.h"

namespace sluice {

class WriteBehind {
 public:
  struct Parts {
    BlockManager& blocks;
    BlockPort& port;
    BlockNames& names;
    StoreWriter& writer;
    Mailbox& mailbox;
  };
  static constexpr size_t kMaxHeld = 8;

  // REQUIRES: all parts outlive this object, and its letters are taken before it ends or never.
  explicit WriteBehind(const Parts& parts)
      : parts_(parts), states_(static_cast<size_t>(parts.blocks.num_blocks())) {}

  // Asks for a block to be stored, once. REQUIRES: it is findable and has a name.
  void add(BlockId id);
  // The block is in the store: it was read from there.
  void set_stored(BlockId id) { state(id) = State::kStored; }
  bool is_stored(BlockId id) const {
    return states_[static_cast<size_t>(id.value)] == State::kStored;
  }
  // It waits or is being written.
  bool is_on_its_way(BlockId id) const {
    const State state = states_[static_cast<size_t>(id.value)];
    return state == State::kWaiting || state == State::kMoving || state == State::kWriting;
  }
  // The block's contents are gone.
  void forget(BlockId id);

  // Moves on as far as there is room. Errors: kDevice.
  void pump();

  // Nothing waits or is on its way.
  bool is_idle() const { return num_waiting_ == 0 && num_held_ == 0; }
  int64_t num_skipped() const { return num_skipped_; }

 private:
  enum class State : uint8_t { kNone, kWaiting, kMoving, kWriting, kStored, kFailed };

  State& state(BlockId id) { return states_[static_cast<size_t>(id.value)]; }
  bool begin_next();
  void write(BlockId id);
  void written(BlockId id, WriteResult result);

  Parts parts_;
  std::vector<State> states_;    // [num_blocks]
  std::deque<BlockId> queue_;    // those that wait, and some that do not any more
  std::vector<BlockId> moving_;  // on their way to host memory
  size_t num_waiting_ = 0;
  size_t num_held_ = 0;
  int64_t num_skipped_ = 0;
  bool is_off_ = false;  // the store writes no more
};

}  // namespace sluice
