// Needle tests of several kinds with several policies, as one table.
//
// Used by needle.cc. Thread rule: main thread.
#pragma once

#include "eval/needle_options.h"

namespace sluice::eval {

// Runs every kind with every policy, one engine for each, into OUT/POLICY/KIND; then writes
// OUT/table.md, OUT/table.json and for each policy a heat map OUT/POLICY.svg, and prints the table.
// A test whose needle.json is complete is not run again, so a table that was interrupted continues.
// Returns the exit code. After an error in a test, the table has those before it.
// Errors: kInvalidArgument for unknown kinds, for what policy_list refuses, and for a needle.json
// in OUT that was asked for otherwise, all before the first question; those of run_needle.
int needle_grid(const NeedleCommand& command);

}  // namespace sluice::eval
