// StatePool: the recurrent states of the linear layers of hybrid models, one seat for each running
// sequence.
//
// Owned by engine/stations/rank; the runner asks it for the slots of a pass, and KV events tell it
// what was committed and what ended. A seat is two slots: a pass reads the one that the last commit
// left and writes the other, and a commit swaps them. So a pass that is cancelled, or is not
// committed, changes no state (docs/adr/0037). A sequence takes a seat with its first pass, or with
// the snapshot that it goes on from, and loses it with its KV; at position 0 nothing is read.
//
// Snapshots are states in pinned host memory, numbered by state/snapshot_table. Both directions are
// copies on the stream of the passes (docs/adr/0039): a pass that writes the slot next comes after
// them. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "ops/delta/delta.h"
#include "state/state_layout.h"
#include "state/state_port.h"

namespace sluice {

// Slots of one sequence in a pass.
struct StateSlots {
  int32_t read = 0;
  int32_t write = 0;
};

class StatePool final : public StatePort {
 public:
  struct Sizes {
    int64_t num_seats = 0;      // sequences that run at the same time
    int64_t num_snapshots = 0;  // may be 0
  };
  // Takes the memory of all seats and snapshots. REQUIRES: the layout is present; `stream`, on
  // which passes run, outlives the pool. Errors: kDoesNotFit.
  StatePool(const StateLayout& layout, const Sizes& sizes, Device& device, Stream& stream);

  // Bytes of device memory and of pinned memory that the constructor takes; 0 for a layout without
  // layers.
  static size_t device_bytes(const StateLayout& layout, int64_t num_seats);
  static size_t pinned_bytes(const StateLayout& layout, int64_t num_snapshots);

  // The slots of a pass over rows of the sequence from `first_pos` on. May be called again for a
  // pass that was not committed. REQUIRES: its state is that after `first_pos` tokens; a seat is
  // free, or it has one.
  StateSlots begin(SequenceId sequence, int64_t first_pos, int64_t num_rows);
  // All rows of the last pass with the sequence became part of it: `num_tokens` tokens.
  void committed(SequenceId sequence, int64_t num_tokens);
  // It ended, was cancelled or preempted. No effect without a seat.
  void release(SequenceId sequence);

  // Copies the state after the committed tokens of the sequence to a place. REQUIRES: some are
  // committed.
  void save(SequenceId sequence, SnapshotId place);
  // The sequence goes on from the state in a place, that after `num_tokens` tokens. REQUIRES: it is
  // before that.
  void restore(SequenceId sequence, SnapshotId place, int64_t num_tokens);
  std::vector<std::span<std::byte>> layers(SnapshotId place) override;

  // The states of the layer in all slots.
  DeltaStates layer(int32_t index) const;
  int32_t num_used_seats() const { return static_cast<int32_t>(seats_.size()); }

 private:
  struct Seat {
    int32_t index = 0;
    int32_t current = 0;      // which of its two slots has the state: 0 or 1
    int64_t position = 0;     // tokens that the state has seen
    int64_t end_of_pass = 0;  // and will have seen after the pass, if it is committed
  };

  std::span<std::byte> snapshot(SnapshotId place);
  Seat& seat_of(SequenceId sequence);
  std::byte* current_slot(const Seat& seat);
  void spoil(int32_t seat);

  StateLayout layout_;
  Stream& stream_;
  Buffer memory_;
  Buffer snapshots_;
  std::vector<int32_t> free_;  // seats, the next one last
  std::unordered_map<SequenceId, Seat> seats_;
};

}  // namespace sluice
