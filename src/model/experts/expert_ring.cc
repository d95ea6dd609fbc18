// Which layers are loaded, and the two waits of a slot.
#include "model/experts/expert_ring.h"

#include <algorithm>
#include <utility>

#include "core/arena.h"
#include "core/error.h"
#include "device/debug_fill.h"

namespace sluice {
namespace {

size_t weight_bytes_of(const PackedExperts& experts) {
  return static_cast<size_t>(experts.num_experts) * experts.stride_bytes;
}

// The same experts, at `data`.
PackedExperts moved_to(const PackedExperts& experts, std::byte* data) {
  PackedExperts moved = experts;
  moved.first.data = data;
  return moved;
}

// Where `down` begins in a slot.
size_t down_offset(const ExpertLayer& layer) {
  Arena plan;
  plan.take(weight_bytes_of(layer.gate_up));
  return plan.used_bytes();
}

size_t slot_bytes_of(std::span<const ExpertLayer> layers) {
  size_t most = 0;
  for (const ExpertLayer& layer : layers) {
    Arena plan;
    plan.take(weight_bytes_of(layer.gate_up));
    plan.take(weight_bytes_of(layer.down));
    most = std::max(most, plan.used_bytes());
  }
  return most;
}

}  // namespace

size_t ExpertRing::device_bytes(std::span<const ExpertLayer> layers, int32_t num_slots) {
  return static_cast<size_t>(num_slots) * slot_bytes_of(layers);
}

ExpertRing::ExpertRing(Device& device, Stream& compute, std::vector<ExpertLayer> layers,
                       int32_t num_slots, SkippedWait skipped)
    : compute_(compute),
      layers_(std::move(layers)),
      gate_(skipped),
      memory_(device.allocate(device_bytes(layers_, num_slots), MemoryKind::kDevice)),
      slot_bytes_(slot_bytes_of(layers_)),
      slots_(static_cast<size_t>(num_slots)),
      transfer_(device.make_stream({.name = "slots of experts", .num_threads = 1})) {
  SLUICE_CHECK(num_slots > 0 && slots_.size() <= layers_.size(), "{} slots for {} layers",
               num_slots, layers_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].data = memory_.data() + i * slot_bytes_;
    slots_[i].filled = device.make_event();
    slots_[i].drained = device.make_event();
  }
}

void ExpertRing::begin_pass() {
  if (used_ != kNone) release(used_);  // by a pass that was cancelled
  load_from(0);
}

ExpertSource ExpertRing::use(int32_t index, const TensorView& experts) {
  Slot* slot = find(index);
  SLUICE_CHECK(slot != nullptr, "layer {} of the experts is not on its way", index);
  if (std::exchange(used_, index) != index) gate_.wait(WaitKind::kFilled, compute_, *slot->filled);
  const ExpertLayer& layer = layers_[static_cast<size_t>(index)];
  return {.experts = experts,
          .gate_up = moved_to(layer.gate_up, slot->data),
          .down = moved_to(layer.down, slot->data + down_offset(layer))};
}

void ExpertRing::release(int32_t index) {
  SLUICE_CHECK(used_ == index, "layer {} of the experts is not in use", index);
  compute_.record(*find(index)->drained);
  used_ = kNone;
  load_from((index + 1) % static_cast<int32_t>(layers_.size()));
}

// Null: the layer is in no slot.
ExpertRing::Slot* ExpertRing::find(int32_t index) {
  const auto found = std::ranges::find(slots_, index, &Slot::index);
  return found == slots_.end() ? nullptr : &*found;
}

// Whether a layer is one of those that have a slot when compute comes to layer `first`.
bool ExpertRing::is_ahead(int32_t index, int32_t first) const {
  const auto num_layers = static_cast<int32_t>(layers_.size());
  return (index - first + num_layers) % num_layers < static_cast<int32_t>(slots_.size());
}

// Starts the loads of `first` and of the layers after it. There are as many slots as such layers,
// so where one is missing, a slot holds another layer or none.
void ExpertRing::load_from(int32_t first) {
  const auto num_layers = static_cast<int32_t>(layers_.size());
  for (int32_t i = 0; i < static_cast<int32_t>(slots_.size()); ++i) {
    const int32_t index = (first + i) % num_layers;
    if (find(index) != nullptr) continue;
    const auto slot = std::ranges::find_if(
        slots_, [&](const Slot& s) { return s.index == kNone || !is_ahead(s.index, first); });
    load(index, *slot);
  }
}

void ExpertRing::load(int32_t index, Slot& slot) {
  const ExpertLayer& layer = layers_[static_cast<size_t>(index)];
  gate_.wait(WaitKind::kDrained, *transfer_, *slot.drained);
  if (kDebugFill) transfer_->fill(slot.data, slot_bytes_, kNanByte);
  std::byte* dst = slot.data;
  for (const PackedExperts* experts : {&layer.gate_up, &layer.down}) {
    const size_t num_bytes = weight_bytes_of(*experts);
    transfer_->copy({.dst = dst, .src = experts->first.data, .num_bytes = num_bytes});
    loaded_bytes_ += static_cast<int64_t>(num_bytes);
    dst = slot.data + down_offset(layer);
  }
  transfer_->record(*slot.filled);
  slot.index = index;
}

}  // namespace sluice
