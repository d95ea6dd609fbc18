// Scripts that complete command lines in a shell, made from a program's table.
//
// Used by `sluice completion`. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "cli/options/option_set.h"

namespace sluice::cli {

// The script for "bash", "zsh" or "fish": commands, their options and the values of choices; files
// where a value is a file. Errors: kInvalidArgument for another shell.
// A script has 60 to 130 KB and starts no program: completing takes no longer than reading it did.
// It has to be written anew after an update.
std::string completion_script(const ProgramSpec& program, std::string_view shell);

}  // namespace sluice::cli
