// Checks values of options against their rows (sluice/option_row.h): the engine's options and the
// parameters of a request, which may be set by a program, and those of the command line.
//
// Used by engine/plan/validate_options, attention/make_policies and the command line. Thread rule:
// pure functions.
#pragma once

#include <string>

#include "sluice/option_row.h"

namespace sluice {

// The name with two dashes: "--max-num-seqs".
std::string long_option(const OptionFacts& facts);

// "-n" of "-n,--max-tokens"; empty where there is none.
std::string short_option(const OptionFacts& facts);

// Errors: kInvalidArgument naming the option, its value, what is allowed and what is taken when it
// is left out. NaN is in no range.
void check_option(const OptionFacts& facts, const OptionValue& value);

// Checks the fields of `rows` that are given. Errors: those of check_option.
template <typename Rows, typename Options>
void check_options(const Rows& rows, const Options& options) {
  for (const auto& row : rows) {
    if (const auto value = row.get(options)) check_option(row.facts, *value);
  }
}

}  // namespace sluice
