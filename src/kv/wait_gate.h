// WaitGate: every cross-stream wait of the offload machinery goes through one of these.
//
// Used by Ring and OffloadEngine. It exists for one test: an engine that forgets its k-th wait, for
// every k, must be caught. Thread rule: the engine's thread.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace sluice {

class WaitGate {
 public:
  static constexpr int64_t kSkipNone = -1;

  explicit WaitGate(int64_t skipped = kSkipNone) : skipped_(skipped) {}

  void wait(Stream& stream, const Event& event) {
    if (num_waits_++ != skipped_) stream.wait(event);
  }
  int64_t num_waits() const { return num_waits_; }

 private:
  int64_t skipped_;
  int64_t num_waits_ = 0;
};

}  // namespace sluice
