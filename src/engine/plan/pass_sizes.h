// pass_sizes: rows of a pass and what follows from them: limits of scheduler, decoder and arrays.
//
// Used by engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "engine/plan/engine_plan.h"
#include "engine/plan/plan_traits.h"
#include "sluice/engine_options.h"

namespace sluice {

// Shapes of decode steps kept as graphs on a GPU: a bound for what the driver keeps of them. Beyond
// it the one that was not used for longest makes room.
inline constexpr int64_t kMaxDecodeGraphs = 128;

// Sets scheduler, decoder, pass and graphs of a plan whose layout and lengths are there.
// Errors: kInvalidArgument for a chunk longer than a pass.
void choose_pass_sizes(const EngineOptions& options, const PlanTraits& traits, EnginePlan& plan);

// Spans of offloaded sequences begin at block borders, so passes are whole blocks.
int64_t round_up_to_block(int64_t tokens, const EnginePlan& plan);

}  // namespace sluice
