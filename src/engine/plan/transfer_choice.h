// transfer_choice: whether offloaded blocks are loaded by copies or by a kernel, by length of run;
// and warnings about options of their transfers that are of little use.
//
// Last steps of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/plan/engine_plan.h"
#include "engine/plan/plan_traits.h"
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

// Slots much smaller than the default's. REQUIRES: KV is offloaded.
void warn_of_tiny_slots(const PlanTraits& traits, EnginePlan& plan);

// Options that "auto" has no use for, since it left KV on the device.
void warn_of_unused_offload(const EngineOptions& options, bool is_offloaded,
                            std::vector<std::string>& warnings);

}  // namespace sluice
