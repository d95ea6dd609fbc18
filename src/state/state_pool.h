// StatePool: the recurrent states of the linear layers of hybrid models, one seat for each running
// sequence.
//
// Owned by engine/stations/rank; the runner asks it for the slots of a pass, and KV events tell it
// what was committed and what ended. A seat is two slots: a pass reads the one that the last commit
// left and writes the other, and a commit swaps them. So a pass that is cancelled, or is not
// committed, changes no state (docs/adr/0037). A sequence takes a seat with its first pass, or with
// the snapshot that it goes on from, and loses it with its KV; at position 0 nothing is read.
//
// Of a verify pass some rows are committed: it leaves records of its rows (docs/adr/0045). If all
// are, the slots are swapped; else the accepted ones are stepped again from their records, into the
// slot that the pass wrote, before something reads the state or overwrites the records.
//
// Snapshots are states in pinned host memory, numbered by state/snapshot_table. Both directions are
// copies on the stream of the passes (docs/adr/0039): a pass that writes the slot next comes after
// them. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "ops/delta/delta.h"
#include "state/state_layout.h"
#include "state/state_port.h"
#include "state/state_records.h"

namespace sluice {

class StatePool final : public StatePort {
 public:
  struct Sizes {
    int64_t num_seats = 0;      // sequences that run at the same time
    int64_t num_snapshots = 0;  // may be 0
    int64_t num_records = 0;    // rows of a verify pass; 0: there are none
    StateRecords::Sizes records() const { return {.num_rows = num_records, .num_seqs = num_seats}; }
  };
  // Takes the memory of all seats, snapshots and records. REQUIRES: the layout is present;
  // `stream`, on which passes run, outlives the pool. Errors: kDoesNotFit.
  StatePool(const StateLayout& layout, const Sizes& sizes, Device& device, Stream& stream);

  // Steps over records again, for all layers with a state. Enqueues only, on the pool's stream.
  using Replay = std::function<void(const StateReplay&)>;
  // REQUIRES: called before a pass has records.
  void replay_with(Replay replay) { replay_ = std::move(replay); }

  // Bytes of device memory and of pinned memory that the constructor takes without records
  // (StateRecords); 0 for a layout without layers.
  static size_t device_bytes(const StateLayout& layout, int64_t num_seats);
  static size_t pinned_bytes(const StateLayout& layout, int64_t num_snapshots);

  // Brings every state to the committed tokens. Called before each pass, and by `save`. Errors:
  // those of StateRecords::describe.
  void settle();

  // A sequence's rows in a pass.
  struct Rows {
    int64_t first_pos = 0;
    int64_t num_rows = 0;
    // Of rows before these by draft passes, which are the only ones to have some: they are in the
    // slot that a pass writes.
    int64_t num_ahead = 0;
    int64_t first_record = -1;  // of the rows' records; -1: there are none
  };
  // The slots of a pass over these rows. May be called again for a pass that was not committed.
  // REQUIRES: states are settled; that of the sequence is the one after the tokens before the rows;
  // a seat is free, or it has one.
  StateSlots begin(SequenceId sequence, const Rows& rows);
  // All rows of the last pass with the sequence became part of it: `num_tokens` tokens. With
  // records: some rows did, and it may be called again for further ones.
  void committed(SequenceId sequence, int64_t num_tokens);
  // It ended, was cancelled or preempted. No effect without a seat.
  void release(SequenceId sequence);

  // Copies the state after the committed tokens of the sequence to a place. REQUIRES: some are
  // committed. Errors: those of `settle`.
  void save(SequenceId sequence, SnapshotId place);
  // The sequence goes on from the state in a place, that after `num_tokens` tokens. REQUIRES: it is
  // before that.
  void restore(SequenceId sequence, SnapshotId place, int64_t num_tokens);
  std::vector<std::span<std::byte>> layers(SnapshotId place) override;

  // The states of the layer in all slots.
  DeltaStates layer(int32_t index) const;
  // The records of the layer. REQUIRES: there are some.
  DeltaRecords records(int32_t index) const { return records_->layer(index); }
  int32_t num_used_seats() const { return static_cast<int32_t>(seats_.size()); }

 private:
  struct Seat {
    int32_t index = 0;
    int32_t current = 0;     // which of its two slots has the state: 0 or 1
    int64_t position = 0;    // tokens that the state has seen
    int64_t num_tokens = 0;  // and shall have seen: the committed ones
    Rows pass;               // the last one
    bool is_settled() const { return position == num_tokens; }
  };

  std::span<std::byte> snapshot(SnapshotId place);
  Seat& seat_of(SequenceId sequence);
  static StateSlots slots_of(const Seat& seat);
  static void swap_slots(Seat& seat);
  std::byte* current_slot(const Seat& seat);
  void spoil(int32_t seat);

  StateLayout layout_;
  Stream& stream_;
  Buffer memory_;
  Buffer snapshots_;
  std::optional<StateRecords> records_;
  Replay replay_;
  std::vector<int32_t> free_;  // seats, the next one last
  std::unordered_map<SequenceId, Seat> seats_;
  std::vector<Seat*> unsettled_;           // of `settle`, in the order of their records
  std::vector<StateRecords::Part> parts_;  // theirs
};

}  // namespace sluice
