// PassMonitor: is told how much of a pass has been enqueued, and may end the pass.
//
// Made by engine/runner for long prefill passes (engine/pass_pacer.h); model/decoder calls it
// after the attention of each layer and after each tile of rows. Thread rule: the engine's thread.
#pragma once

#include "device/device.h"

namespace sluice {

class PassMonitor {
 public:
  virtual ~PassMonitor() = default;

  // Another part of the pass is enqueued on `stream`; with it, `share` (0 to 1, never falling) of
  // the pass's arithmetic. May block the host. What it throws ends the pass: the parts that are
  // enqueued still run, no other part is enqueued.
  virtual void on_part(Stream& stream, double share) = 0;
};

}  // namespace sluice
