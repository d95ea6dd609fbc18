// EnginePlan: every size of an engine, decided from options, model and device before anything is
// loaded.
//
// `sluice inspect` prints it and LlmEngine follows it, so that what is predicted is what is taken.
// Thread rule: plain values.
#pragma once

#include <cstdint>

#include "attention/make_residency.h"
#include "attention/policy_pair.h"
#include "device/device.h"
#include "device/host/host_memory.h"
#include "engine/plan/pass_sizes.h"
#include "kv/kv_layout.h"
#include "model/experts/host_experts.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"
#include "sluice/inspect.h"
#include "state/snapshot_table.h"

namespace sluice {

struct EnginePlan {
  int32_t num_ranks = 1;  // each of which takes what follows
  MemoryPlan memory;      // what is printed; notes and warnings included
  KvLayout kv_layout;
  KvOffload kv_offload = KvOffload::kOff;  // what was chosen, never kAuto
  int32_t num_blocks = 0;     // of the device pool, or of the host tier when KV is offloaded
  int64_t max_model_len = 0;  // longest request
  bool caches_prefixes = true;
  SnapshotSizes snapshots;  // of the states of hybrid models
  HostExpertSizes experts;  // of mixtures whose experts are in host memory
  PassSizes passes;
  OffloadedLimits offloaded;         // when KV is offloaded
  double link_bytes_per_second = 0;  // to the device, measured by sluice doctor; 0: it was not
  PairLimits policies;
};

// Whether sealed blocks live in the host tier.
inline bool offloads(const EnginePlan& plan) { return plan.kv_offload != KvOffload::kOff; }

// Where the plan puts KV.
ResidencySizes residency_sizes(const EnginePlan& plan);

// Errors: kInvalidArgument for options that are out of range or contradict each other or the model,
// naming option, value and remedy. Memory that is too small is no error here: `memory.fits` is
// false and `memory.remedy` says what to change. `host` is the machine's own unless a test says
// otherwise.
EnginePlan make_engine_plan(const EngineOptions& options, const ModelConfig& config, Device& device,
                            const PolicyPair& policies,
                            const HostMemory& host = read_host_memory());

// The sparse options, with the profile of the model's directory if the policies read one and no
// option takes its place. Errors: those of make_policies for names.
SparseOptions complete_sparse_options(const EngineOptions& options);

// The policies that the options name. Errors: those of attention/policy_pair.h.
std::unique_ptr<PolicyPair> make_policies(const EngineOptions& options);

// Threads of the compute stream: options.num_threads, or all the machine has.
int32_t num_compute_threads(const EngineOptions& options, const Device& device);

}  // namespace sluice
