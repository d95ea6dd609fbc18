// Ring: the slots on the device through which host KV flows.
//
// Used by OffloadEngine only. A slot holds blocks of one layer and is always in one state:
//
//   free --begin_load--> loading --loaded--> filled --use--> in use --release--> free
//
// "filled" and "drained" are events of the slot: a reader's stream waits for the first before it
// reads the slot, the slot's next load waits for the second before it overwrites it. Only a
// SlotLease gives access to a slot's memory, and it goes through these states in order; any other
// order is a failed check. Each slot has a transfer stream of its own, so that loads overlap each
// other and compute.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "kv/wait_gate.h"
#include "ops/kv_blocks.h"

namespace sluice {

class Ring;

// A hold on one slot, from before its load until after its last reader was enqueued.
class SlotLease {
 public:
  SlotLease() = default;
  SlotLease(SlotLease&& other) noexcept;
  SlotLease& operator=(SlotLease&& other) noexcept;
  ~SlotLease();  // gives the slot back, whatever state it is in

  bool held() const { return ring_ != nullptr; }
  SlotId slot() const { return slot_; }

  // While loading: the stream to copy on, and the memory to copy to.
  Stream& transfer() const;
  const KvBlocksView& target() const;
  // Ends the load: records "filled" on the transfer stream.
  void loaded();

  // `reader` waits for "filled"; work enqueued on it after this call may read the blocks.
  const KvBlocksView& use(Stream& reader);
  // Records "drained" on the reader and gives the slot back.
  void release();

 private:
  friend class Ring;
  SlotLease(Ring* ring, SlotId slot) : ring_(ring), slot_(slot) {}

  Ring* ring_ = nullptr;
  SlotId slot_;
};

class Ring {
 public:
  // Takes num_slots * slot_blocks blocks of device memory as one allocation.
  // REQUIRES: `gate` outlives the ring; the readers' work has ended when the ring is destroyed.
  Ring(Device& device, const KvBlockShape& shape, int32_t num_slots, int32_t slot_blocks,
       WaitGate& gate);

  static size_t bytes(const KvBlockShape& shape, int32_t num_slots, int32_t slot_blocks) {
    return static_cast<size_t>(num_slots) * static_cast<size_t>(slot_blocks) * shape.block_bytes();
  }

  int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }
  int32_t slot_blocks() const { return slot_blocks_; }
  bool is_free(SlotId id) const {
    return slots_[static_cast<size_t>(id.value)].state == State::kFree;
  }
  int32_t num_free() const { return static_cast<int32_t>(free_slots_.size()); }

  // Takes the slot that has been free longest; its transfer stream waits for "drained".
  // REQUIRES: num_free() > 0.
  SlotLease begin_load();

  // Encloses a pass that may be captured, in which every load waits for earlier work of `reader`.
  // begin_pass: `reader` waits for "drained" of every slot, so that the first load of each slot
  // need not, and slots are taken in order of their numbers, so that every replay uses the same
  // ones.
  // end_pass: records "drained" of every slot after the work that `reader` was given, enqueued or
  // launched as a graph.
  // REQUIRES for both: all slots are free.
  void begin_pass(Stream& reader);
  void end_pass(Stream& reader);

  // `writer`, which will overwrite the source of these loads, waits for every load that has no
  // reader yet, once for each.
  void wait_for_unread(Stream& writer);

  void synchronize();  // waits until every load is through

 private:
  friend class SlotLease;
  enum class State { kFree, kLoading, kFilled, kInUse };
  struct Slot {
    State state = State::kFree;
    KvBlocksView view;
    Stream* reader = nullptr;
    bool writer_waits = false;  // wait_for_unread has waited for this load
    bool is_drained = false;    // begin_pass has waited, so the next load need not
    // Streams last: they end before the events and the memory are freed.
    std::unique_ptr<Event> filled;
    std::unique_ptr<Event> drained;
    std::unique_ptr<Stream> transfer;
  };

  // The slot of a lease that is held. REQUIRES (checked): it is in that state.
  static Slot& leased(const SlotLease& lease, State state);
  void give_back(SlotId id);
  Slot& slot(SlotId id) { return slots_[static_cast<size_t>(id.value)]; }

  WaitGate& gate_;
  Buffer memory_;
  int32_t slot_blocks_;
  std::vector<SlotId> free_slots_;  // the first has been free longest
  std::vector<Slot> slots_;
};

}  // namespace sluice
