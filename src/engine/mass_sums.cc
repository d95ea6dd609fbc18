// Sums of tallies.
#include "engine/mass_sums.h"

#include <utility>

#include "ops/tiles/audit_mass.h"

namespace sluice {

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

}  // namespace sluice
