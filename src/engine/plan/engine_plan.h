// EnginePlan: every size of an engine, decided from options, model and device before anything is
// loaded.
//
// `sluice inspect` prints it and LlmEngine follows it, so that what is predicted is what is taken.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/offloaded_kv.h"
#include "attention/policy_pair.h"
#include "device/device.h"
#include "device/host/host_memory.h"
#include "engine/scheduler.h"
#include "kv/kv_layout.h"
#include "model/decoder.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"
#include "sluice/inspect.h"

namespace sluice {

struct EnginePlan {
  MemoryPlan memory;  // what is printed
  KvLayout kv_layout;
  KvOffload kv_offload = KvOffload::kOff;  // what was chosen, never kAuto
  int32_t num_blocks = 0;        // of the device pool, or of the host tier when KV is offloaded
  OffloadSizes offload;          // when it is
  int64_t state_rows = 0;        // rows whose softmax state can be carried, when it is
  bool blocks_stay = false;      // when it is: sealed blocks may be resident as well
  bool needs_block_ids = false;  // when it is: passes give them
  int64_t max_model_len = 0;
  SchedulerLimits scheduler;
  DecoderLimits decoder;
  PassLimits pass;
  int64_t min_watched_rows = 0;  // a prefill pass of fewer is too short to watch (pass_pacer.h)
  PairLimits policies;
  bool fixed_decode_shapes = false;  // see Runner::Parts
  int64_t max_decode_graphs = 0;
  std::vector<std::string> notes;     // what was chosen, one line each; also in `memory`
  std::vector<std::string> warnings;  // what is less than asked for, or slow; also in `memory`
};

// Errors: kInvalidArgument for options that are out of range or contradict each other or the model,
// naming option, value and remedy. Memory that is too small is no error here: `memory.fits` is
// false and `memory.remedy` says what to change. `host` is the machine's own unless a test says
// otherwise.
EnginePlan make_engine_plan(const EngineOptions& options, const ModelConfig& config, Device& device,
                            const PolicyPair& policies,
                            const HostMemory& host = read_host_memory());

// What OffloadedKv is made for. REQUIRES: the plan offloads.
OffloadedLimits offloaded_limits(const EnginePlan& plan);

// The policies that the options name. Errors: those of attention/policy_pair.h.
std::unique_ptr<PolicyPair> make_policies(const EngineOptions& options);

// Threads of the compute stream: options.num_threads, or all the machine has.
int32_t num_compute_threads(const EngineOptions& options, const Device& device);

}  // namespace sluice
