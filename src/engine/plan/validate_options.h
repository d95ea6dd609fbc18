// Engine options on their own, before a model or a device is looked at.
//
// Used by engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "sluice/engine_options.h"

namespace sluice {

// Errors: kInvalidArgument naming option, value, range and remedy.
void validate_options(const EngineOptions& options);

// What was asked for, or the default.
int32_t max_num_seqs(const EngineOptions& options);

}  // namespace sluice
