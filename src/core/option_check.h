// Checks values of options against their rows (sluice/option_row.h): the engine's options and the
// parameters of a request, which may be set by a program, and those of the command line.
//
// Used by engine/plan/validate_options, attention/make_policies and the readers of options. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/option_row.h"

namespace sluice {

// The name with two dashes: "--max-num-seqs".
std::string long_option(const OptionFacts& facts);

// "-n" of "-n,--max-tokens"; empty where there is none.
std::string short_option(const OptionFacts& facts);

// Whether a number below the range stands for an option that is not given, as 0 and -1 of top_k do.
bool means_unset(const OptionFacts& facts, int64_t value);

// The least number that a reader takes, whether it means a value or none.
int64_t least_number(const OptionFacts& facts);

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
