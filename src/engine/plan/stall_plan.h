// How long running sequences wait for a prefill pass: the limits that max_stall_ms sets, and the
// notes on the pause that results.
//
// One step of engine_plan.cc. Thread rule: pure functions, but for the file of machine_profile.h.
#pragma once

#include "device/device.h"
#include "engine/plan/engine_plan.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"

namespace sluice {

// Rates from which the pause is known before anything is measured; 0: KV is not transferred, or
// nothing is known of the device.
struct StallRates {
  double link_bytes_per_second = 0;
  double attention_flops = 0;
};

// Those of the device's kind; the link's as `sluice doctor` measured it, if it did.
StallRates stall_rates(const EngineOptions& options, const Device& device);

// Rows of a span from which its attention to a token of history takes as long as the transfer of
// that token's KV; shorter spans wait for the link.
//
//   (KV bytes of a token / link rate) / (4 * layers * query heads * head size / attention rate)
// REQUIRES: neither rate is 0.
int64_t tokens_that_hide_link(const ModelConfig& config, const KvLayout& layout,
                              const StallRates& rates);

// Sets max_stall_ns and min_span_tokens of the plan's scheduler, and adds a note. Does nothing if
// max_stall_ms is 0. A layer-wise pass cannot be cut, and the note says so.
void plan_stalls(const EngineOptions& options, const ModelConfig& config, const StallRates& rates,
                 EnginePlan& plan);

}  // namespace sluice
