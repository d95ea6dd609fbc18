// plan_search: from options to the plan that is followed: what "auto" chooses, and which one option
// would be enough where nothing fits.
//
// Used by make_engine_plan. A plan is made from options alone and takes no memory, so both are
// answered by trying: every remedy that is named was planned and fits. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/plan/engine_plan.h"
#include "sluice/engine_options.h"

namespace sluice {

// Plans options whose kv_offload is not "auto". Errors: kInvalidArgument, as make_engine_plan.
using MakePlan = std::function<EnginePlan(const EngineOptions&)>;

// The plan of `options`. With "auto": the first of off, layerwise and chunked that fits and does
// not shorten `asked_len`, for as many sequences as were asked for, or for fewer where nothing was
// said; where each shortens it, the one that does least. A plan that does not fit has a remedy.
EnginePlan search_plan(const EngineOptions& options, int64_t asked_len, const MakePlan& make);

}  // namespace sluice
