// Checks of engine options that need neither a model nor a device.
#pragma once

#include <cstdint>

#include "sluice/engine_options.h"

namespace sluice {

// Errors: kInvalidArgument naming option, value, range and remedy.
// Also run on every option set that plan_search tries.
void validate_options(const EngineOptions& options);

// The option, or its default.
int32_t max_num_seqs(const EngineOptions& options);

}  // namespace sluice
