// Which cases of a grid a sanitized build runs: every n-th, and over many commits all.
//
// A sanitizer makes a case up to 20 times slower, and what it looks for does not depend on every
// size. Builds without one run all cases. SLUICE_TEST_SAMPLE is the number of the sample (CI takes
// it from the commit); with SLUICE_TEST_SAMPLE=all sanitized builds run all cases, too. Thread
// rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "support/sanitizer.h"

namespace sluice::testing {

// Whether this build runs case `index` of a grid of which a sanitized one runs every `every`-th.
inline bool in_sample(size_t index, size_t every) {
  if (!kSanitized) return true;
  const char* given = std::getenv("SLUICE_TEST_SAMPLE");
  if (given == nullptr) return index % every == 0;
  if (std::string_view(given) == "all") return true;
  return (index + std::strtoull(given, nullptr, 10)) % every == 0;
}

template <typename Case>
std::vector<Case> sample_of(std::span<const Case> cases, size_t every) {
  std::vector<Case> chosen;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (in_sample(i, every)) chosen.push_back(cases[i]);
  }
  return chosen;
}

template <typename Case, size_t kCount>
std::vector<Case> sample_of(const Case (&cases)[kCount], size_t every) {
  return sample_of(std::span<const Case>(cases), every);
}

template <typename Case>
std::vector<Case> sample_of(const std::vector<Case>& cases, size_t every) {
  return sample_of(std::span<const Case>(cases), every);
}

}  // namespace sluice::testing
