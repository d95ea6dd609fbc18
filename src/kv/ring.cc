// The slot state machine.
#include "kv/ring.h"

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
  if (held()) ring_->give_back(ring_->slots_[slot_]);
}

Stream& SlotLease::transfer() const {
  const Ring::Slot& slot = ring_->slots_[slot_];
  SLUICE_CHECK(slot.state == Ring::State::kLoading, "slot {}", slot_);
  return *slot.transfer;
}

const KvBlocksView& SlotLease::target() const {
  const Ring::Slot& slot = ring_->slots_[slot_];
  SLUICE_CHECK(slot.state == Ring::State::kLoading, "slot {}", slot_);
  return slot.view;
}

void SlotLease::loaded() {
  Ring::Slot& slot = ring_->slots_[slot_];
  SLUICE_CHECK(slot.state == Ring::State::kLoading, "slot {}", slot_);
  slot.transfer->record(*slot.filled);
  slot.state = Ring::State::kFilled;
}

const KvBlocksView& SlotLease::use(Stream& reader) {
  Ring::Slot& slot = ring_->slots_[slot_];
  SLUICE_CHECK(slot.state == Ring::State::kFilled, "slot {}", slot_);
  ring_->gate_.wait(reader, *slot.filled);
  slot.reader = &reader;
  slot.state = Ring::State::kInUse;
  return slot.view;
}

void SlotLease::release() {
  Ring::Slot& slot = ring_->slots_[slot_];
  SLUICE_CHECK(slot.state == Ring::State::kInUse, "slot {}", slot_);
  ring_->give_back(slot);
  ring_ = nullptr;
}

Ring::Ring(Device& device, const KvBlockShape& shape, int32_t num_slots, int32_t slot_blocks,
           WaitGate& gate)
    : gate_(gate),
      memory_(device.allocate(bytes(shape, num_slots, slot_blocks), MemoryKind::kDevice)),
      slot_blocks_(slot_blocks),
      num_free_(num_slots),
      slots_(static_cast<size_t>(num_slots)) {
  const size_t slot_bytes = bytes(shape, 1, slot_blocks);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].view = {.base = memory_.data() + i * slot_bytes,
                      .stride_bytes = shape.block_bytes(),
                      .num_blocks = slot_blocks,
                      .shape = shape};
    slots_[i].filled = device.make_event();
    slots_[i].drained = device.make_event();
    slots_[i].transfer = device.make_stream({.name = fmt::format("slot {}", i), .num_threads = 1});
  }
}

SlotLease Ring::begin_load() {
  const size_t index = next_;
  next_ = (next_ + 1) % slots_.size();
  Slot& slot = slots_[index];
  SLUICE_CHECK(slot.state == State::kFree, "slot {}", index);
  gate_.wait(*slot.transfer, *slot.drained);
  slot.state = State::kLoading;
  --num_free_;
  return SlotLease(this, index);
}

void Ring::give_back(Slot& slot) {
  // A slot that nobody read yet is drained when its load is through.
  Stream& last = slot.state == State::kInUse ? *slot.reader : *slot.transfer;
  if (kDebugFill) {
    last.fill(slot.view.base, slot.view.stride_bytes * static_cast<size_t>(slot_blocks_), kNanByte);
  }
  last.record(*slot.drained);
  slot.reader = nullptr;
  slot.state = State::kFree;
  ++num_free_;
}

}  // namespace sluice
