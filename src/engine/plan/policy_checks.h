// What a plan says of the sparse policies: whether a speculative method can draft with them, and
// their notes.
//
// Steps of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include "attention/policy_pair.h"
#include "engine/plan/engine_plan.h"
#include "sluice/engine_options.h"

namespace sluice {

// What a policy reads beside the options, as a note; a warning if no option names it.
void add_policy_note(const EngineOptions& options, const PolicyPair& policies, EnginePlan& plan);

// Errors: kUnsupported for a method that drafts with other policies than these.
void check_method(const EngineOptions& options, const PolicyPair& policies,
                  const KvBlockShape& block);

}  // namespace sluice
