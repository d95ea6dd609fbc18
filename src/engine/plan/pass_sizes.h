// PassSizes: rows of a pass, and the limits of scheduler, decoder and arrays that follow from them.
//
// One step of engine_plan.cc. Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>

#include "attention/residency.h"
#include "engine/plan/plan_traits.h"
#include "engine/schedule/scheduler.h"
#include "model/decoder.h"
#include "sluice/engine_options.h"

namespace sluice {

// Shapes of decode steps that are kept as graphs on a GPU. The driver takes memory for each, so
// the number is bounded; the graph that was not used for longest makes room.
inline constexpr int64_t kMaxDecodeGraphs = 128;

struct PassSizes {
  SchedulerLimits scheduler;
  DecoderLimits decoder;
  PassLimits limits;                 // of the runner's arrays and the residency's
  int64_t min_watched_rows = 0;      // shorter prefill passes are not watched (pass_pacer.h)
  bool fixed_decode_shapes = false;  // see Runner::Parts
  int64_t max_decode_graphs = 0;
};

// What the sizes follow from, beside options and device.
struct PassNeeds {
  KvOffload kv_offload = KvOffload::kOff;  // not kAuto
  int32_t block_tokens = 0;
  int64_t max_model_len = 0;
  int64_t scope_tokens = 1;       // of the prefill policy, attention/policy.h
  int64_t draft_rows = 0;         // rows of a verify pass beside one of each sequence
  int64_t zone_chunk_tokens = 0;  // queries may differ by zones of keys: of a chunk; 0: they do not
  bool has_states = false;        // sequences have recurrent states
};

// Errors: kInvalidArgument for a chunk that is longer than a pass, and for a chunk or pass that is
// too short for a span.
PassSizes choose_pass_sizes(const EngineOptions& options, const PlanTraits& traits,
                            const PassNeeds& needs);

}  // namespace sluice
