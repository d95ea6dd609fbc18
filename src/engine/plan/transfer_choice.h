// transfer_choice: whether offloaded blocks are loaded by copies or by a kernel, by length of run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/device.h"
#include "sluice/engine_options.h"

namespace sluice {

struct TransferChoice {
  size_t copy_run_bytes = 0;         // runs of at least this length are copied; 0: all runs
  double link_bytes_per_second = 0;  // to the device, measured by `sluice doctor`; 0: it was not
  std::vector<std::string> notes;    // what was chosen and why, one line each
};

// Takes, in this order: the option, the measurement of `sluice doctor` for this GPU, a default. A
// CPU device always copies, and gets a note only if the option is set.
TransferChoice choose_transfers(const EngineOptions& options, const Device& device);

}  // namespace sluice
