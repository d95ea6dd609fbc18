// WaitGate: counts the cross-stream waits of KV offload, all of which go through it.
//
// Used by the parts of OffloadEngine. It exists for tests/engine/offload_waits_test.cc, which
// leaves out each wait in turn and must detect it. Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace sluice {

// Each kind: the stream that waits, and what it waits for.
enum class WaitKind {
  kFilled,     // compute: a slot's load
  kDrained,    // slot, compute before a pass that gathers: the readers of what it held before
  kOnHost,     // slot, compute before a pass that gathers: the write-back of the blocks to load
  kStageLeft,  // compute: the write-back of what the stage held before
  kWritten,    // write-back: compute has written what leaves
  kTailLeft,   // compute: the write-back of what the tail held before
  kUnused,     // write-back: a load that is not going to be read, before its blocks change
  kSelected,   // slot: the lists that say which pages it gathers
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
