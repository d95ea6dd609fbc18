// The manual page of a program, made from its table.
//
// Used by `sluice man`. Thread rule: pure functions.
#pragma once

#include <string>

#include "cli/options/option_set.h"

namespace sluice::cli {

// In the language of man(7). Groups of options that several commands share are there once.
// The page has no date, so the same build writes the same bytes.
std::string man_page(const ProgramSpec& program);

}  // namespace sluice::cli
