#include "server/metrics/instruments.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace sluice::metrics {

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<double>::is_always_lock_free,
              "the engine's thread must not wait for readers");

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(bounds_.size() + 1) {
  SLUICE_CHECK(
      std::all_of(bounds_.begin(), bounds_.end(), [](double b) { return std::isfinite(b); }));
  const auto falls = [](double a, double b) { return a >= b; };
  SLUICE_CHECK(std::adjacent_find(bounds_.begin(), bounds_.end(), falls) == bounds_.end());
}

void Histogram::observe(double value, int64_t count) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  buckets_[static_cast<size_t>(bound - bounds_.begin())].fetch_add(count,
                                                                   std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(count), std::memory_order_relaxed);
}

// The count is that of the buckets read here, so that the last bucket and the count agree in every
// page, whatever is observed meanwhile.
Histogram::Reading Histogram::read() const {
  Reading reading{.bounds = bounds_};
  reading.cumulative.reserve(bounds_.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    reading.count += buckets_[i].load(std::memory_order_relaxed);
    if (i < bounds_.size()) reading.cumulative.push_back(reading.count);
  }
  reading.sum = sum_.load(std::memory_order_relaxed);
  return reading;
}

}  // namespace sluice::metrics
