// The command line of the program: turns words into an invocation of a subcommand.
#pragma once

#include <string>
#include <vector>

#include "cli/options/option_set.h"

namespace sluice::cli {

// Reads `words` (without the program's name) and the environment; runs nothing.
// Errors: kInvalidArgument naming the option, its value and a remedy.
ParseOutcome parse_command_line(const std::vector<std::string>& words);

}  // namespace sluice::cli
