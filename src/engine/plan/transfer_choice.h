// Which way offloaded blocks take to the device: from which run length on copies are the better
// one.
//
// Used by engine_plan.cc and cli/bench. Thread rule: reads a file, keeps no state.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/device.h"
#include "sluice/engine_options.h"

namespace sluice {

struct TransferChoice {
  size_t copy_run_bytes = 0;       // as OffloadSizes has it
  std::vector<std::string> notes;  // what was chosen and why, one line each
};

// The option, what `sluice doctor` has measured of this GPU, or a default, in this order. A CPU
// device copies, and says nothing, unless the option is given.
TransferChoice choose_transfers(const EngineOptions& options, const Device& device);

}  // namespace sluice
