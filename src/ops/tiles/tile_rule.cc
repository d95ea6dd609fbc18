// The rule over integers: forced tiles, then the others by falling mass.
#include "ops/tiles/tile_rule.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace sluice {
namespace {

// The tiles of [0, q_tile] that are not forced, heaviest first.
std::vector<int32_t> by_falling_mass(const TileRule& rule, const QueryTile& tile,
                                     std::span<const uint32_t> mass) {
  std::vector<int32_t> others;
  for (int32_t j = 0; j <= tile.q_tile; ++j) {
    if (!is_forced(rule, tile, j)) others.push_back(j);
  }
  std::stable_sort(others.begin(), others.end(), [&](int32_t a, int32_t b) {
    return mass[static_cast<size_t>(a)] > mass[static_cast<size_t>(b)];
  });
  return others;
}

// How many of `others` it takes to cover the share. Sums are below 2^33 (2^30, and less than 1 of
// rounding for each tile), so that products with a share fit 64 bits.
size_t count_for_coverage(const TileRule& rule, const QueryTile& tile,
                          std::span<const uint32_t> mass, std::span<const int32_t> others,
                          uint64_t column_mass) {
  uint64_t forced = 0;
  uint64_t total = column_mass;
  for (int32_t j = 0; j <= tile.q_tile; ++j) {
    total += mass[static_cast<size_t>(j)];
    if (is_forced(rule, tile, j)) forced += mass[static_cast<size_t>(j)];
  }
  const uint64_t goal = rule.share * (rule.is_share_of_rest ? total - forced : total);
  uint64_t covered = column_mass + (rule.is_share_of_rest ? 0 : forced);
  size_t count = 0;
  while (count < others.size() && covered * kMassOne < goal) {
    covered += mass[static_cast<size_t>(others[count++])];
  }
  return count;
}

// How many of `others` have at least the share of the heaviest mass of all tiles.
size_t count_for_alpha(const TileRule& rule, std::span<const uint32_t> mass,
                       std::span<const int32_t> others) {
  const uint64_t goal = uint64_t{rule.share} * *std::max_element(mass.begin(), mass.end());
  const auto below = std::find_if(others.begin(), others.end(), [&](int32_t j) {
    return uint64_t{mass[static_cast<size_t>(j)]} * kMassOne < goal;
  });
  return static_cast<size_t>(below - others.begin());
}

size_t count_chosen(const TileRule& rule, const QueryTile& tile, std::span<const uint32_t> mass,
                    std::span<const int32_t> others, uint64_t column_mass) {
  switch (rule.choice) {
    case TileChoice::kCoverage:
      return count_for_coverage(rule, tile, mass, others, column_mass);
    case TileChoice::kTop:
      return std::min(others.size(), static_cast<size_t>(rule.top_tiles));
    case TileChoice::kAlpha:
      return count_for_alpha(rule, mass, others);
    case TileChoice::kPart:
      return std::min(others.size(), static_cast<size_t>(part_of_tiles(rule, tile)));
  }
  SLUICE_CHECK(false, "choice {}", static_cast<int>(rule.choice));
  return 0;
}

}  // namespace

bool TileSelection::is_everything() const {
  return std::find(is_set.begin(), is_set.end(), false) == is_set.end();
}

TileSelection take_tiles(const TileRule& rule, const QueryTile& tile,
                         std::span<const uint32_t> mass, uint64_t column_mass) {
  SLUICE_CHECK(std::ssize(mass) == tile.q_tile + 1, "{} masses for query tile {}", mass.size(),
               tile.q_tile);
  const bool has_mass =
      column_mass > 0 || std::any_of(mass.begin(), mass.end(), [](uint32_t a) { return a > 0; });
  if (!has_mass || attends_everything(rule, tile)) {
    return {.is_set = std::vector<bool>(mass.size(), true)};
  }
  const std::vector<int32_t> others = by_falling_mass(rule, tile, mass);
  const auto besides_forced = [&](int32_t tiles) {
    return static_cast<size_t>(std::max<int64_t>(0, tiles - std::ssize(mass) + std::ssize(others)));
  };
  const size_t chosen = count_chosen(rule, tile, mass, others, column_mass);
  size_t count = std::min(others.size(), std::max(chosen, besides_forced(rule.min_tiles)));
  if (rule.max_tiles > 0) count = std::min(count, besides_forced(rule.max_tiles));
  TileSelection selection{.is_set = std::vector<bool>(mass.size(), false),
                          .num_cut = static_cast<int32_t>(chosen - std::min(chosen, count))};
  for (int32_t j = 0; j <= tile.q_tile; ++j) {
    if (is_forced(rule, tile, j)) selection.is_set[static_cast<size_t>(j)] = true;
  }
  for (size_t i = 0; i < count; ++i) selection.is_set[static_cast<size_t>(others[i])] = true;
  return selection;
}

}  // namespace sluice
