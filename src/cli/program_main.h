// What the programs have in common: sluice, sluice-eval and sluice-lab read their words alike, run
// one command and end with the same exit codes.
//
// Each has a table of its subcommands (cli/program.cc, eval/program.cc, lab/program.cc). Thread
// rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "cli/options/option_set.h"

namespace sluice::cli {

// The command line of a program, with the footer, the version and the variables of all of them.
ProgramSpec make_program(std::string name, std::string summary,
                         std::vector<SubcommandSpec> subcommands);

// The body of main(): runs one command and returns the exit code of the process. Every error ends
// as one message.
int program_main(const ProgramSpec& program, int argc, char** argv);

}  // namespace sluice::cli
