// EnginePlan: every size of an engine, decided from options, model and device before anything is
// loaded.
//
// `sluice inspect` prints it and LlmEngine follows it, so that what is predicted is what is taken.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/policy.h"
#include "device/device.h"
#include "engine/pass_arrays.h"
#include "engine/scheduler.h"
#include "kv/kv_layout.h"
#include "kv/offload_engine.h"
#include "model/decoder.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"
#include "sluice/inspect.h"

namespace sluice {

enum class KvOffload { kOff, kChunked, kLayerwise };

const char* kv_offload_name(KvOffload mode);  // as EngineOptions::kv_offload spells it

struct EnginePlan {
  MemoryPlan memory;  // what is printed
  KvLayout kv_layout;
  KvOffload kv_offload = KvOffload::kOff;
  int32_t num_blocks = 0;  // of the device pool, or of the host tier when KV is offloaded
  OffloadSizes offload;    // when it is
  int64_t state_rows = 0;  // rows whose softmax state can be carried, when it is
  int64_t max_model_len = 0;
  SchedulerLimits scheduler;
  DecoderLimits decoder;
  PassLimits pass;
  PolicyLimits policy;
  bool fixed_decode_shapes = false;  // see Runner::Parts
  int64_t max_decode_graphs = 0;
  std::vector<std::string> notes;  // what was chosen or reduced, one line each; also in `memory`
};

// Errors: kInvalidArgument for options that are out of range or contradict each other or the model,
// naming option, value and remedy. Memory that is too small is no error here: `memory.fits` is
// false and `memory.remedy` says what to change.
EnginePlan make_engine_plan(const EngineOptions& options, const ModelConfig& config, Device& device,
                            const Policy& policy);

// The policy that the options name. Errors: those of make_policy.
std::unique_ptr<Policy> make_policy(const EngineOptions& options);

// Threads of the compute stream: options.num_threads, or all the machine has.
int32_t num_compute_threads(const EngineOptions& options, const Device& device);

}  // namespace sluice
