// The seeds of a randomised test, from the environment or by default.
//
// Used by property, fuzz and race tests. A test puts the seed into SCOPED_TRACE, so that a failure
// prints it; SLUICE_TEST_SEED=N then runs that seed alone. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::testing {

// 1 to `num_seeds`; SLUICE_TEST_SEEDS=N changes how many, SLUICE_TEST_SEED=N runs N alone.
std::vector<uint64_t> test_seeds(int num_seeds);

}  // namespace sluice::testing
