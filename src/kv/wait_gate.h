// WaitGate: counts the cross-stream waits of offload, all of which go through one.
//
// Used by the parts of OffloadEngine, and by model/experts/expert_ring, which has two of the kinds.
// It exists for tests/engine/offload/offload_waits_test.cc, which leaves out each wait in turn and
// must detect it. Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace sluice {

// Each kind: the stream that waits, and what it waits for.
enum class WaitKind {
  kFilled,     // compute: a slot's load
  kDrained,    // slot, or compute before a pass that gathers: readers of the slot's old contents
  kOnHost,     // slot, or compute before a pass that gathers: write-back of the blocks to load
  kStageLeft,  // compute: write-back of the stage's old contents
  kWritten,    // write-back: compute has written the blocks that it copies
  kTailLeft,   // compute: write-back of the tail's old contents
  kUnused,     // write-back: reads of blocks that no pass will use, before the blocks change
  kSelected,   // slot: the lists by which it gathers
};
inline constexpr size_t kNumWaitKinds = 8;

// Leaves out the index-th wait of a kind, counted from 0; none if negative.
struct SkippedWait {
  WaitKind kind = WaitKind::kFilled;
  int64_t index = -1;
};

class WaitGate {
 public:
  explicit WaitGate(SkippedWait skipped = {}) : skipped_(skipped) {}

  void wait(WaitKind kind, Stream& stream, const Event& event) {
    const int64_t index = num_waits_[static_cast<size_t>(kind)]++;
    if (kind != skipped_.kind || index != skipped_.index) stream.wait(event);
  }
  int64_t num_waits(WaitKind kind) const { return num_waits_[static_cast<size_t>(kind)]; }

 private:
  SkippedWait skipped_;
  std::array<int64_t, kNumWaitKinds> num_waits_{};
};

}  // namespace sluice
