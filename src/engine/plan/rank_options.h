// rank_options: what an engine of several ranks has of a machine, and which options it refuses.
//
// Steps of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/host/host_memory.h"
#include "sluice/engine_options.h"

namespace sluice {

// Errors: kUnsupported for a device or an option that several ranks cannot have yet, naming it.
void check_rank_options(const EngineOptions& options, const Device& device);

// A rank's part of what the ranks of one machine share: its memory, the bytes of KV in host memory
// that the options ask for.
HostMemory host_of_rank(const HostMemory& host, int32_t num_ranks);
EngineOptions options_of_rank(const EngineOptions& options);

// That the plan is that of each of several ranks.
void add_rank_note(int32_t num_ranks, std::vector<std::string>& notes);

// CPU threads of one rank of this many that the options or the machine have; at least one.
int32_t num_threads_of_rank(const EngineOptions& options, int32_t num_cores);

}  // namespace sluice
