// Seeds from the environment.
#include "support/seeds.h"

#include <cstdlib>
#include <numeric>

namespace sluice::testing {

std::vector<uint64_t> test_seeds(int num_seeds) {
  if (const char* one = std::getenv("SLUICE_TEST_SEED")) return {std::strtoull(one, nullptr, 10)};
  if (const char* many = std::getenv("SLUICE_TEST_SEEDS")) num_seeds = std::atoi(many);
  std::vector<uint64_t> seeds(num_seeds > 0 ? static_cast<size_t>(num_seeds) : 1);
  std::iota(seeds.begin(), seeds.end(), uint64_t{1});
  return seeds;
}

}  // namespace sluice::testing
