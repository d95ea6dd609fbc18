// The text of --help, wrapped to the terminal.
//
// Used by option_set.cc. Thread rule: pure functions but help_width.
#pragma once

#include <cstddef>
#include <string>

#include "cli/options/option_set.h"

namespace sluice::cli {

// Width of the terminal at standard output, limited to [60, 100] columns; 80 without a terminal.
size_t help_width();

// "-m,--model MODEL".
std::string option_words(const Option& option);

// --help of the program (`spec` is null) or of a group of subcommands.
std::string help_of_group(const ProgramSpec& program, const SubcommandSpec* spec, size_t width);

// --help of a subcommand with the options of `set`: those of spec.common, to fit one screen, or
// all. Groups in the order of declaration, then the footer (with all) and the examples.
std::string help_of_command(const ProgramSpec& program, const SubcommandSpec& spec,
                            const OptionSet& set, size_t width, bool all);

}  // namespace sluice::cli
