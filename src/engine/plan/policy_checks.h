// What a plan says of the sparse policies: whether a speculative method can draft with them,
// whether they know the zones of dual chunk attention, and their notes.
//
// Steps of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include "attention/policy_pair.h"
#include "engine/plan/engine_plan.h"
#include "engine/plan/plan_input.h"
#include "sluice/engine_options.h"

namespace sluice {

// What a policy reads beside the options, as a note; a warning if no option names it.
void add_policy_note(const EngineOptions& options, const PolicyPair& policies, EnginePlan& plan);

// Errors: kUnsupported for a method that drafts with other policies than these.
void check_method(const EngineOptions& options, const PolicyPair& policies,
                  const KvBlockShape& block);

// Whether requests may be longer than a chunk of dual chunk attention.
bool has_zones(const ModelConfig& config, int64_t max_model_len);

// Of dual chunk attention past its first chunk. Errors: kInvalidArgument for blocks that do not
// divide a chunk, and for segments that do not; kUnsupported for policies that choose by the
// queries of a row's own chunk alone, and for the audit, which measures by them.
void check_zones(const PlanInput& input, const EnginePlan& plan);

}  // namespace sluice
