// plan_search: from options to the final plan: resolves kv_offload "auto", and finds an option that
// would make a plan fit.
//
// Used by make_engine_plan. A plan depends on options alone and takes no memory, so both are found
// by trial: every remedy that is named was planned and fits. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/plan/engine_plan.h"
#include "sluice/engine_options.h"

namespace sluice {

// Plans options whose kv_offload is not "auto"; a weights_offload of "auto" is "off". Errors:
// kInvalidArgument, as make_engine_plan.
using MakePlan = std::function<EnginePlan(const EngineOptions&)>;

struct SearchGoal {
  int64_t max_model_len = 0;      // to reach
  bool num_seqs_is_given = true;  // else max_num_seqs of the options, if any, is the most to try
};

// The plan of `options`. With "auto": the first of off, layerwise and chunked that fits and reaches
// the length, for max_num_seqs sequences or, if that is not given, for fewer. If every plan
// shortens the length, the one that shortens it least, up to small differences. A plan that does
// not fit has a remedy.
EnginePlan search_plan(const EngineOptions& options, const SearchGoal& goal, const MakePlan& make);

// The same; with weights_offload "auto" a plan with experts in host memory if only such a one fits.
EnginePlan search_with_experts(const EngineOptions& options, const SearchGoal& goal,
                               const MakePlan& make);

}  // namespace sluice
