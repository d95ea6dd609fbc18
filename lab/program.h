// The table of the subcommands of the program sluice-lab: measurements for those who change Sluice.
#pragma once

#include "cli/options/option_set.h"

namespace sluice::lab {

// Built on first use.
const cli::ProgramSpec& program();

}  // namespace sluice::lab
