// Sums of tallies, and their mean over layers.
#include "engine/mass_sums.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "ops/tiles/audit_mass.h"

namespace sluice {
namespace {

// The value that Student's t exceeds in 5 % of cases, both sides together. Cornish and Fisher's
// series in 1 / degrees: its error is below 0.2 % from 9 degrees on.
double two_sided_t95(int64_t num_degrees) {
  const double n = static_cast<double>(num_degrees);
  const double z = 1.959964;
  const double z3 = z * z * z, z5 = z3 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n);
}

}  // namespace

void MassSums::add(std::span<const int64_t> tallies, int64_t num_layers) {
  num_layers_ = num_layers;
  sums_.resize(tallies.size());
  for (size_t i = 0; i < tallies.size(); ++i) sums_[i] += tallies[i];
}

std::vector<MassObservations> MassSums::describe() const {
  std::vector<MassObservations> layers;
  const std::span<const int64_t> sums = sums_;
  for (int64_t layer = 0; layer < num_layers_; ++layer) {
    const size_t length = sums.size() / static_cast<size_t>(num_layers_);
    AuditedMass mass = summarize_mass(sums.subspan(static_cast<size_t>(layer) * length, length));
    layers.push_back({.num_rows = mass.num_rows,
                      .num_skipped = mass.num_skipped,
                      .captured = {},
                      .standard_error = {},
                      .of_heads = std::move(mass.of_heads)});
    if (mass.num_rows > 0) layers.back().captured = mass.mean;
    if (mass.num_rows > 1) layers.back().standard_error = mass.standard_error;
  }
  return layers;
}

MassObservations mean_over_layers(const std::vector<MassObservations>& layers) {
  MassObservations mean;
  double sum = 0;
  double errors = 0;
  int64_t num_measured = 0, num_errors = 0;
  for (const MassObservations& layer : layers) {
    mean.num_rows = std::max(mean.num_rows, layer.num_rows);
    mean.num_skipped = std::max(mean.num_skipped, layer.num_skipped);
    if (!layer.captured) continue;
    sum += *layer.captured;
    ++num_measured;
    errors += layer.standard_error.value_or(0);
    num_errors += layer.standard_error ? 1 : 0;
  }
  if (num_measured == 0) return mean;
  mean.captured = sum / static_cast<double>(num_measured);
  if (num_errors > 0) mean.standard_error = errors / static_cast<double>(num_errors);
  return mean;
}

std::optional<MassRange> range_of(const MassObservations& mass) {
  if (!mass.captured || !mass.standard_error || mass.num_rows < kLeastRowsOfRange) return {};
  const double half = *mass.standard_error * two_sided_t95(mass.num_rows - 1);
  return MassRange{std::max(0.0, *mass.captured - half), std::min(1.0, *mass.captured + half)};
}

}  // namespace sluice
