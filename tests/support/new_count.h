// Counts what this program takes with operator new, which it replaces in all forms without an
// alignment.
//
// For tests that bound what a step costs the host; they list new_count.cc among their sources.
// Thread rule: the counts are those of all threads.
#pragma once

#include <cstdint>

namespace sluice::testing {

int64_t num_news();       // calls so far
int64_t num_new_bytes();  // bytes asked for so far

}  // namespace sluice::testing
