// ExpertRing: the slots on the device through which whole layers of experts flow, in the order of
// the layers and then again from the first.
//
// Part of HostExperts, for passes whose rows choose more experts than the cache has places for. A
// slot holds the experts of one layer. Loads are ahead of compute by as many layers as there are
// other slots, beyond the end of a pass too: weights do not change, so the next pass finds its
// first layers there. With a slot for each layer nothing is loaded twice.
//
//   transfer   | layer l | layer l+1 | wait l | layer l+2 | ...
//   compute    |         | l's products | attention | l+1's products | ...
//
// A slot's load waits for "drained", which compute records after the layer's products; compute
// waits for "filled". One stream does all transfers: the link has one queue. Thread rule: the
// engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "kv/wait_gate.h"
#include "model/experts/expert_layer.h"

namespace sluice {

class ExpertRing {
 public:
  // Takes the device memory. REQUIRES: the weights of `layers`, in pinned memory, outlive the ring
  // and do not change; `compute` reads the slots; at least one slot, at most one for each layer.
  ExpertRing(Device& device, Stream& compute, std::vector<ExpertLayer> layers, int32_t num_slots,
             SkippedWait skipped = {});

  static size_t device_bytes(std::span<const ExpertLayer> layers, int32_t num_slots);

  // A pass begins: loads of its first layers start, unless they are there.
  void begin_pass();
  // The experts of layer `index` of `layers`, for work that compute is given until `release`. May
  // be called again for the same layer. REQUIRES: layers come in order from 0 on; one whose pass
  // was cancelled need not be released.
  ExpertSource use(int32_t index, const TensorView& experts);
  // After the layer's last work: its slot is loaded again.
  void release(int32_t index);

  int64_t loaded_bytes() const { return loaded_bytes_; }
  int64_t num_waits(WaitKind kind) const { return gate_.num_waits(kind); }

 private:
  static constexpr int32_t kNone = -1;
  struct Slot {
    std::byte* data = nullptr;
    int32_t index = kNone;  // of the layer that it holds or that is on the way
    std::unique_ptr<Event> filled;
    std::unique_ptr<Event> drained;
  };

  Slot* find(int32_t index);
  void load_from(int32_t first);
  void load(int32_t index, Slot& slot);
  bool is_ahead(int32_t index, int32_t first) const;

  Stream& compute_;
  const std::vector<ExpertLayer> layers_;
  WaitGate gate_;
  Buffer memory_;
  size_t slot_bytes_;
  std::vector<Slot> slots_;
  int32_t used_ = kNone;  // the layer between `use` and `release`
  int64_t loaded_bytes_ = 0;
  // Last: it ends before the events and the memory are freed.
  std::unique_ptr<Stream> transfer_;
};

}  // namespace sluice
