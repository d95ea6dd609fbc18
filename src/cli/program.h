// The command line of the program: from words to what they ask for.
//
// Used by main.cc. Thread rule: main thread, before anything starts.
#pragma once

#include <string>
#include <vector>

#include "cli/options/option_set.h"

namespace sluice::cli {

// Reads `words` (without the program's name) and the environment.
// Errors: kInvalidArgument naming the option, its value and what to write instead.
ParseOutcome parse_command_line(const std::vector<std::string>& words);

}  // namespace sluice::cli
