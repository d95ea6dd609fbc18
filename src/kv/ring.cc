// The state machine of slots; each step checks the state before it.
#include "kv/ring.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "device/debug_fill.h"

namespace sluice {

SlotLease::SlotLease(SlotLease&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)), slot_(other.slot_) {}

SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  std::swap(ring_, other.ring_);
  std::swap(slot_, other.slot_);
  return *this;
}

SlotLease::~SlotLease() {
  if (held()) ring_->give_back(slot_);
}

Ring::Slot& Ring::leased(const SlotLease& lease, State state) {
  SLUICE_CHECK(lease.held(), "a lease that was given back");
  Slot& slot = lease.ring_->slot(lease.slot_);
  SLUICE_CHECK(slot.state == state, "slot {} is in state {} instead of {}", lease.slot_.value,
               static_cast<int>(slot.state), static_cast<int>(state));
  return slot;
}

Stream& SlotLease::transfer() const { return *Ring::leased(*this, Ring::State::kLoading).transfer; }

const KvBlocksView& SlotLease::target() const {
  return Ring::leased(*this, Ring::State::kLoading).view;
}

void SlotLease::loaded() {
  Ring::Slot& slot = Ring::leased(*this, Ring::State::kLoading);
  slot.transfer->record(*slot.filled);
  slot.state = Ring::State::kFilled;
}

const KvBlocksView& SlotLease::use(Stream& reader) {
  Ring::Slot& slot = Ring::leased(*this, Ring::State::kFilled);
  ring_->gate_.wait(WaitKind::kFilled, reader, *slot.filled);
  slot.reader = &reader;
  slot.state = Ring::State::kInUse;
  return slot.view;
}

void SlotLease::release() {
  Ring::leased(*this, Ring::State::kInUse);
  std::exchange(ring_, nullptr)->give_back(slot_);
}

Ring::Ring(Device& device, const KvBlockShape& shape, int32_t num_slots, int32_t slot_blocks,
           WaitGate& gate)
    : gate_(gate),
      memory_(device.allocate(bytes(shape, num_slots, slot_blocks), MemoryKind::kDevice)),
      slot_blocks_(slot_blocks),
      slots_(static_cast<size_t>(num_slots)) {
  const size_t slot_bytes = bytes(shape, 1, slot_blocks);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].view = {.base = memory_.data() + i * slot_bytes,
                      .stride_bytes = shape.block_bytes(),
                      .num_blocks = slot_blocks,
                      .shape = shape};
    free_slots_.emplace_back(static_cast<int32_t>(i));
    slots_[i].filled = device.make_event();
    slots_[i].drained = device.make_event();
    slots_[i].transfer = device.make_stream({.name = fmt::format("slot {}", i), .num_threads = 1});
  }
}

SlotLease Ring::begin_load() {
  SLUICE_CHECK(!free_slots_.empty(), "all {} slots are taken", num_slots());
  const SlotId id = free_slots_.front();
  free_slots_.erase(free_slots_.begin());
  Slot& slot = this->slot(id);
  if (!std::exchange(slot.is_drained, false)) {
    gate_.wait(WaitKind::kDrained, *slot.transfer, *slot.drained);
  }
  slot.state = State::kLoading;
  slot.writer_waits = false;
  return SlotLease(this, id);
}

void Ring::begin_pass(Stream& reader) {
  SLUICE_CHECK(num_free() == num_slots(), "{} of {} slots are free", num_free(), num_slots());
  std::ranges::sort(free_slots_);
  for (Slot& slot : slots_) {
    gate_.wait(WaitKind::kDrained, reader, *slot.drained);
    slot.is_drained = true;
  }
}

void Ring::end_pass(Stream& reader) {
  SLUICE_CHECK(num_free() == num_slots(), "{} of {} slots are free", num_free(), num_slots());
  for (Slot& slot : slots_) {
    reader.record(*slot.drained);
    slot.is_drained = false;
  }
}

void Ring::wait_for_unread(Stream& writer) {
  for (Slot& slot : slots_) {
    if (slot.state != State::kFilled || slot.writer_waits) continue;
    gate_.wait(WaitKind::kUnused, writer, *slot.filled);
    slot.writer_waits = true;
  }
}

void Ring::synchronize() {
  for (Slot& slot : slots_) slot.transfer->synchronize();
}

void Ring::give_back(SlotId id) {
  Slot& slot = this->slot(id);
  // A slot that was never read is drained when its load has ended.
  Stream& last = slot.state == State::kInUse ? *slot.reader : *slot.transfer;
  if (kDebugFill) {
    last.fill(slot.view.base, slot.view.stride_bytes * static_cast<size_t>(slot_blocks_), kNanByte);
  }
  last.record(*slot.drained);
  slot.reader = nullptr;
  slot.state = State::kFree;
  free_slots_.push_back(id);
}

}  // namespace sluice
