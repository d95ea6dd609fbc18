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

// Of the GPUs that ranks take, the least memory and the least that is free; of one rank, of a CPU
// and of a GPU that is not here, those of `device`. Errors: kUnsupported if a rank has no GPU.
DeviceInfo info_of_ranks(const EngineOptions& options, const Device& device);
DeviceInfo with_least_memory(const DeviceInfo& a, const DeviceInfo& b);

// What a decode step of the whole model costs: bytes of weights that it reads.
struct DecodeWork {
  size_t weight_bytes = 0;
  int32_t num_layers = 0;
};
// The rate of decode on GPUs with short contexts, over that of one. From figures measured on H100
// and H200 (docs/measured/ranks.md), so an estimate for others.
double expected_decode_ratio(const DecodeWork& work, int32_t num_ranks);

// That the plan is that of each of several ranks; of GPUs also what they gain.
void add_rank_notes(int32_t num_ranks, DeviceKind kind, const DecodeWork& work,
                    std::vector<std::string>& notes);

// CPU threads of one rank of this many that the options or the machine have; at least one.
int32_t num_threads_of_rank(const EngineOptions& options, int32_t num_cores);

}  // namespace sluice
