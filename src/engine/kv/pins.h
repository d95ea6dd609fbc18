// Pins: holds the blocks of named prefixes, so that they stay in memory.
//
// Part of KvStation. A pin is made by a request that computes, or finds, the prefix; when it ends,
// its blocks are held, of a hybrid model with the deepest snapshot of them. Pins never take the
// memory that one longest request needs, so that every request still runs; what does not fit is
// left to the KV store, if there is one. Requests know nothing of pins: they find the blocks as any
// others. Thread rule: the engine's thread, but for check_room.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "kv/block_manager.h"
#include "kv/sequence_kv.h"
#include "sluice/pin_info.h"
#include "store/store_key.h"

namespace sluice {

class KvBacking;
class StateSnapshots;

class Pins {
 public:
  struct Parts {
    BlockManager& blocks;
    KvBacking& store;         // if it writes: has, or will have, all blocks; evicts pins' last
    int64_t max_blocks = 0;   // that pins may hold
    int64_t block_bytes = 0;  // all layers
    bool on_host = false;     // where blocks are
    // Of a model whose KV alone continues no text; else null.
    StateSnapshots* snapshots = nullptr;
    int64_t snapshot_bytes = 0;
  };
  // REQUIRES: both references outlive this object.
  explicit Pins(const Parts& parts) : parts_(parts) {}

  // Errors: kInvalidArgument for a name that is_pin_name refuses; kDoesNotFit for a prompt of which
  // memory has no room beside the other pins, without a store, and for one more snapshot than pins
  // may hold. Any thread.
  void check_room(const std::string& name, int64_t num_prompt_tokens) const;

  // Holds the blocks of a prompt's first `num_tokens` tokens that others can find, in place of an
  // older pin of this name. REQUIRES: the sequence has its blocks.
  void keep(const std::string& name, const SequenceKv& kv, int64_t num_tokens);
  // False if there is no pin of this name.
  bool release(const std::string& name);

  // By name.
  std::vector<PinInfo> list() const;
  // The blocks that are held, by name, in order of position. Valid until the next change.
  struct Held {
    const std::string& name;
    std::span<const BlockId> blocks;
    int64_t num_disk_blocks = 0;  // the rest of the pin, which only the store has
  };
  std::vector<Held> held() const;
  // Grows with each change.
  int64_t num_changes() const { return num_changes_; }

 private:
  struct Pin {
    std::vector<BlockId> held;
    int64_t num_blocks = 0;      // these and those that only the store has
    int64_t state_prefix = 0;    // whose snapshot is held; 0: none
    std::vector<StoreKey> keys;  // of all of them
  };

  int32_t most_states() const;
  void check_snapshots(const std::string& name) const;
  void hold_state(Pin& pin);
  void unhold_last(Pin& pin);
  void tell_store() const;

  Parts parts_;
  std::map<std::string, Pin> pins_;
  std::atomic<int64_t> num_held_ = 0;
  std::atomic<int32_t> num_held_states_ = 0;
  int64_t num_changes_ = 0;
};

}  // namespace sluice
