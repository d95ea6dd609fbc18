// Seats and the two slots of each.
#include "state/state_pool.h"

#include <algorithm>

#include "core/error.h"
#include "device/debug_fill.h"

namespace sluice {
namespace {

// One that holds the state of the committed tokens, and one that the next pass writes.
constexpr int32_t kSlotsPerSeat = 2;

}  // namespace

size_t StatePool::device_bytes(const StateLayout& layout, int64_t num_seats) {
  return static_cast<size_t>(kSlotsPerSeat * num_seats) * layout.slot_bytes();
}

size_t StatePool::pinned_bytes(const StateLayout& layout, int64_t num_snapshots) {
  return static_cast<size_t>(num_snapshots) * layout.slot_bytes();
}

StatePool::StatePool(const StateLayout& layout, const Sizes& sizes, Device& device, Stream& stream)
    : layout_(layout),
      stream_(stream),
      memory_(device.allocate(device_bytes(layout, sizes.num_seats), MemoryKind::kDevice)),
      snapshots_(device.allocate(pinned_bytes(layout, sizes.num_snapshots), MemoryKind::kPinned)) {
  SLUICE_CHECK(layout.present() && sizes.num_seats > 0, "{} seats", sizes.num_seats);
  for (auto seat = static_cast<int32_t>(sizes.num_seats - 1); seat >= 0; --seat) {
    free_.push_back(seat);
  }
  if (sizes.num_records == 0) return;
  records_.emplace(layout, sizes.records(), device);
  unsettled_.reserve(free_.size());
  parts_.reserve(free_.size());
}

// A seat is taken by the first use of a sequence and kept until release. The scheduler admits no
// more sequences than there are seats, so an empty list is a defect.
StatePool::Seat& StatePool::seat_of(SequenceId sequence) {
  const auto found = seats_.find(sequence);
  if (found != seats_.end()) return found->second;
  SLUICE_CHECK(!free_.empty(), "no seat for sequence {}", sequence.value);
  Seat& seat = seats_[sequence];
  seat.index = free_.back();
  free_.pop_back();
  return seat;
}

StateSlots StatePool::slots_of(const Seat& seat) {
  const int32_t first = kSlotsPerSeat * seat.index;
  return {.read = first + seat.current, .write = first + 1 - seat.current};
}

// What the pass wrote is the state after the committed tokens.
void StatePool::swap_slots(Seat& seat) {
  seat.position = seat.num_tokens;
  seat.current = 1 - seat.current;
}

// May be called again for a pass that was given up: it writes the same slot, whose contents are of
// no committed token. So are those that draft passes leave there, which the next one steps further
// in place. At position 0 the kernels read no state, so a new seat needs no zeros.
StateSlots StatePool::begin(SequenceId sequence, const Rows& rows) {
  Seat& seat = seat_of(sequence);
  SLUICE_CHECK(seat.is_settled(), "the state of sequence {} is at {} of {} tokens", sequence.value,
               seat.position, seat.num_tokens);
  SLUICE_CHECK(seat.position + rows.num_ahead == rows.first_pos,
               "sequence {} is at position {}, its state at {}", sequence.value, rows.first_pos,
               seat.position + rows.num_ahead);
  SLUICE_CHECK(rows.num_ahead == 0 || seat.pass.first_pos + seat.pass.num_rows == rows.first_pos,
               "sequence {} drafts at position {}, its last pass ended at {}", sequence.value,
               rows.first_pos, seat.pass.first_pos + seat.pass.num_rows);
  seat.pass = rows;
  const StateSlots slots = slots_of(seat);
  return rows.num_ahead == 0 ? slots : StateSlots{.read = slots.write, .write = slots.write};
}

// All rows of a pass or none, since a state cannot go back to a row in between; but for those whose
// records can be stepped over again. That waits until the state is needed, because a verify pass is
// committed row by row, and after the last of them nothing is left to do.
void StatePool::committed(SequenceId sequence, int64_t num_tokens) {
  Seat& seat = seat_of(sequence);
  const int64_t end_of_pass = seat.pass.first_pos + seat.pass.num_rows;
  const bool is_whole = num_tokens == end_of_pass;
  SLUICE_CHECK(seat.num_tokens < num_tokens && seat.pass.num_ahead == 0 &&
                   (is_whole || (seat.pass.first_record >= 0 && num_tokens < end_of_pass)),
               "{} tokens of sequence {} are committed, its pass ended at {}", num_tokens,
               sequence.value, end_of_pass);
  seat.num_tokens = num_tokens;
  if (is_whole && seat.position == seat.pass.first_pos) swap_slots(seat);
}

// Of all sequences at once, so that a layer costs two launches.
void StatePool::settle() {
  unsettled_.clear();
  parts_.clear();
  for (auto& [sequence, seat] : seats_) {
    if (!seat.is_settled()) unsettled_.push_back(&seat);
  }
  if (unsettled_.empty()) return;
  std::ranges::sort(unsettled_, {}, [](const Seat* seat) { return seat->pass.first_record; });
  for (Seat* seat : unsettled_) {
    parts_.push_back(
        {.first_record = seat->pass.first_record + seat->position - seat->pass.first_pos,
         .num_rows = seat->num_tokens - seat->position,
         .first_pos = seat->position,
         .slots = slots_of(*seat)});
    swap_slots(*seat);
  }
  replay_(records_->describe(parts_, stream_));
}

void StatePool::release(SequenceId sequence) {
  const auto found = seats_.find(sequence);
  if (found == seats_.end()) return;
  if (kDebugFill) spoil(found->second.index);
  free_.push_back(found->second.index);
  seats_.erase(found);
}

// A sequence that read the state of another would show it.
void StatePool::spoil(int32_t seat) {
  const size_t num_bytes = kSlotsPerSeat * layout_.slot_bytes();
  stream_.fill(memory_.data() + static_cast<size_t>(seat) * num_bytes, num_bytes, kNanByte);
}

std::byte* StatePool::current_slot(const Seat& seat) {
  const auto slot = static_cast<size_t>(kSlotsPerSeat * seat.index + seat.current);
  return memory_.data() + slot * layout_.slot_bytes();
}

void StatePool::save(SequenceId sequence, SnapshotId place) {
  settle();
  const Seat& seat = seat_of(sequence);
  SLUICE_CHECK(seat.position > 0, "sequence {} has no state yet", sequence.value);
  const std::span<std::byte> target = snapshot(place);
  stream_.copy({.dst = target.data(), .src = current_slot(seat), .num_bytes = target.size_bytes()});
}

void StatePool::restore(SequenceId sequence, SnapshotId place, int64_t num_tokens) {
  Seat& seat = seat_of(sequence);
  SLUICE_CHECK(seat.position < num_tokens, "sequence {} is at position {}, the snapshot at {}",
               sequence.value, seat.position, num_tokens);
  const std::span<std::byte> source = snapshot(place);
  stream_.copy({.dst = current_slot(seat), .src = source.data(), .num_bytes = source.size_bytes()});
  seat.position = seat.num_tokens = num_tokens;
}

std::span<std::byte> StatePool::snapshot(SnapshotId place) {
  const size_t num_bytes = layout_.slot_bytes();
  const size_t offset = static_cast<size_t>(place.value) * num_bytes;
  SLUICE_CHECK(place.valid() && offset < snapshots_.size_bytes(), "snapshot {}", place.value);
  return {snapshots_.data() + offset, num_bytes};
}

std::vector<std::span<std::byte>> StatePool::layers(SnapshotId place) {
  const std::span<std::byte> bytes = snapshot(place);
  stream_.synchronize();
  std::vector<std::span<std::byte>> layers;
  for (size_t at = 0; at < bytes.size(); at += layout_.layer_bytes()) {
    layers.push_back(bytes.subspan(at, layout_.layer_bytes()));
  }
  return layers;
}

DeltaStates StatePool::layer(int32_t index) const {
  SLUICE_CHECK(index >= 0 && index < layout_.num_layers, "layer {}", index);
  return {.base = memory_.data() + static_cast<size_t>(index) * layout_.layer_bytes(),
          .slot_bytes = layout_.slot_bytes(),
          .num_slots = static_cast<int32_t>(memory_.size_bytes() / layout_.slot_bytes()),
          .shape = layout_.shape};
}

}  // namespace sluice
