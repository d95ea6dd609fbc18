// The table of the subcommands of the program sluice-eval: tests of what a model finds in long
// texts.
#pragma once

#include "cli/options/option_set.h"

namespace sluice::eval {

// Built on first use.
const cli::ProgramSpec& program();

}  // namespace sluice::eval
