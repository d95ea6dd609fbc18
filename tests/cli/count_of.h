// Counts parts of what a program prints, for the tests of cli/. Thread rule: any thread.
#pragma once

#include <string>

namespace sluice::cli {

// How many times `part`, which is not empty, occurs in `text`; occurrences may overlap.
inline size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace sluice::cli
