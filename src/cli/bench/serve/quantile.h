// A quantile of measured values. Used by streams.cc. Thread rule: a pure function.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/error.h"

namespace sluice::cli {

// The value that this share of them does not exceed: the nearest rank, so one that was measured.
// REQUIRES: at least one value.
inline double quantile(std::vector<double> values, double share) {
  SLUICE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

}  // namespace sluice::cli
