// The table of measurements, and bounds between its points.
#include "engine/schedule/prefill_rates.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sluice {

int PrefillRates::index_of(int64_t position) {
  const double doublings = std::log2(static_cast<double>(std::max<int64_t>(position, 1)));
  return std::min(static_cast<int>(doublings * kPerDoubling), kNumPoints - 1);
}

void PrefillRates::measured(int64_t mean_position, int64_t num_rows, int64_t duration_ns) {
  SLUICE_CHECK(mean_position >= 0 && num_rows > 0, "{} rows at {}", num_rows, mean_position);
  Point& point = points_[static_cast<size_t>(index_of(mean_position))];
  // A clock may show no time at all for a short pass; a cost of 0 means "not measured".
  const double newest =
      static_cast<double>(std::max<int64_t>(duration_ns, 1)) / static_cast<double>(num_rows);
  const auto rows = static_cast<double>(num_rows);
  // 1 for the first measurement, 1/2 for one of a pass that is not shorter than earlier ones.
  const double weight = point.num_rows == 0 ? 1 : std::min(rows / point.num_rows, 1.0) / 2;
  point.ns_per_row += weight * (newest - point.ns_per_row);
  point.num_rows = std::max(rows, point.num_rows + weight * (rows - point.num_rows));
  point.position = static_cast<double>(std::max<int64_t>(mean_position, 1));
}

std::optional<double> PrefillRates::ns_per_row(int64_t position) const {
  const int index = index_of(position);
  std::optional<double> bound;
  const auto take = [&](double ns) { bound = bound ? std::min(*bound, ns) : ns; };
  for (int i = index; i >= 0; --i) {
    const Point& point = points_[static_cast<size_t>(i)];
    if (point.ns_per_row == 0) continue;
    take(point.ns_per_row * std::max(static_cast<double>(position) / point.position, 1.0));
    break;
  }
  for (int i = index + 1; i < kNumPoints; ++i) {
    const Point& point = points_[static_cast<size_t>(i)];
    if (point.ns_per_row == 0) continue;
    take(point.ns_per_row);
    break;
  }
  return bound;
}

// Bisection: a span costs more the longer it is, since its rows also end later.
int64_t PrefillRates::rows_within(int64_t first_pos, int64_t duration_ns, int64_t max_rows) const {
  const auto fits = [&](int64_t num_rows) {
    const auto cost = ns_per_row(first_pos + num_rows / 2);
    return cost && *cost * static_cast<double>(num_rows) <= static_cast<double>(duration_ns);
  };
  if (fits(max_rows)) return max_rows;
  int64_t fitting = 0, too_many = max_rows;
  while (too_many - fitting > 1) {
    const int64_t middle = fitting + (too_many - fitting) / 2;
    (fits(middle) ? fitting : too_many) = middle;
  }
  return fitting;
}

}  // namespace sluice
