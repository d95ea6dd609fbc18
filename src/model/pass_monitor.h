// PassMonitor: receives the progress of a pass while it is enqueued, and can end the pass.
//
// Implemented by engine/runner for long prefill passes (engine/pass_pacer.h). Called by
// model/decoder after the attention of each layer and after each tile of rows. Thread rule: the
// engine's thread.
#pragma once

#include "device/device.h"

namespace sluice {

class PassMonitor {
 public:
  virtual ~PassMonitor() = default;

  // One more part of the pass is on `stream`. `share`, 0 to 1 and never falling, is the fraction of
  // the pass's arithmetic that is enqueued so far. May block the host. An exception from it ends
  // the pass: parts already enqueued still run, and no further part is enqueued.
  virtual void on_part(Stream& stream, double share) = 0;
};

}  // namespace sluice
