// The table of the subcommands of the program sluice.
#pragma once

#include "cli/options/option_set.h"

namespace sluice::cli {

// Built on first use.
const ProgramSpec& program();

}  // namespace sluice::cli
