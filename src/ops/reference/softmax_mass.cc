// The softmax with its maximum taken out, and plain sums.
#include "ops/reference/softmax_mass.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "ops/attention/attention.h"

namespace sluice::reference {

bool add_token_mass(std::span<const double> scores, std::span<double> mass) {
  SLUICE_CHECK(scores.size() <= mass.size(), "{} scores, {} masses", scores.size(), mass.size());
  if (scores.empty()) return false;
  const double largest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> weights(scores.size());
  double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    weights[j] = std::exp(scores[j] - largest);
    sum += weights[j];
  }
  // Infinite and NaN scores make the sum NaN.
  if (!std::isfinite(sum) || !std::isfinite(largest)) return false;
  for (size_t j = 0; j < scores.size(); ++j) mass[j] += weights[j] / sum;
  return true;
}

std::vector<double> tile_mass(std::span<const double> token_mass) {
  constexpr auto kTile = static_cast<size_t>(kMaskTileTokens);
  std::vector<double> tiles((token_mass.size() + kTile - 1) / kTile);
  for (size_t j = 0; j < token_mass.size(); ++j) tiles[j / kTile] += token_mass[j];
  return tiles;
}

double mass_of_tiles(std::span<const double> tile_mass, const std::vector<bool>& is_set) {
  SLUICE_CHECK(tile_mass.size() == is_set.size(), "{} tiles, {} flags", tile_mass.size(),
               is_set.size());
  double sum = 0;
  for (size_t j = 0; j < tile_mass.size(); ++j) sum += is_set[j] ? tile_mass[j] : 0.0;
  return sum;
}

double mass_of_best_tokens(std::span<const double> choice, std::span<const double> token_mass,
                           int64_t count) {
  SLUICE_CHECK(choice.size() == token_mass.size() && count >= 0, "{} choices, {} masses, count {}",
               choice.size(), token_mass.size(), count);
  std::vector<size_t> order(choice.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto end = order.begin() + std::min<int64_t>(count, std::ssize(order));
  std::nth_element(order.begin(), end, order.end(), [&](size_t a, size_t b) {
    return choice[a] != choice[b] ? choice[a] > choice[b] : a < b;
  });
  double sum = 0;
  for (auto token = order.begin(); token != end; ++token) sum += token_mass[*token];
  return sum;
}

}  // namespace sluice::reference
