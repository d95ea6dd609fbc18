// The rule that turns masses into tiles, against a slow one that takes one tile after the other.
//
// Reveals: forced tiles that are left out or paid for twice, ties and sums that depend on an order,
// a share that the crossing tile misses, bounds that cut forced tiles.
#include "ops/tiles/tile_rule.h"

#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "ops/attention/attention.h"

namespace sluice {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr int64_t kLong = 1 << 20;  // a prompt whose tail is far away

uint32_t share(double value) { return static_cast<uint32_t>(value * kMassOne); }

std::vector<int32_t> tiles_of(const TileSelection& selection) {
  std::vector<int32_t> tiles;
  for (size_t j = 0; j < selection.is_set.size(); ++j) {
    if (selection.is_set[j]) tiles.push_back(static_cast<int32_t>(j));
  }
  return tiles;
}

// A rule without thresholds, so that small tiles show what it does.
TileRule coverage(double value) {
  return {.choice = TileChoice::kCoverage, .share = share(value), .recent_tokens = 0};
}

using Tiles = std::vector<int32_t>;

// Forced are the sink tile and the diagonal; of the others 3, 1, 2 by mass.
const std::vector<uint32_t> kMass = {share(0.30), share(0.10), share(0.05),
                                     share(0.20), share(0.02), share(0.33)};
constexpr QueryTile kTile5{.q_tile = 5, .prompt_end = kLong};

TEST(TileRule, CoverageTakesTheHeaviestUntilTheShareIsReached) {
  EXPECT_EQ(tiles_of(take_tiles(coverage(0.5), kTile5, kMass)), (Tiles{0, 5})) << ".63 forced";
  EXPECT_EQ(tiles_of(take_tiles(coverage(0.8), kTile5, kMass)), (Tiles{0, 3, 5})) << ".83";
  EXPECT_EQ(tiles_of(take_tiles(coverage(0.84), kTile5, kMass)), (Tiles{0, 1, 3, 5}));
  EXPECT_EQ(tiles_of(take_tiles(coverage(0.99), kTile5, kMass)), (Tiles{0, 1, 2, 3, 4, 5}));
}

TEST(TileRule, CoverageOfTheRestLeavesForcedMassOut) {
  TileRule rule = coverage(0.5);  // of .37: .185
  rule.is_share_of_rest = true;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 3, 5}));
  rule.share = share(0.6);  // .222
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 3, 5}));
}

TEST(TileRule, MassOfColumnsCountsAsCovered) {
  std::vector<uint32_t> mass = kMass;
  mass[3] -= share(0.15);  // columns of tile 3 hold it
  EXPECT_EQ(tiles_of(take_tiles(coverage(0.78), kTile5, mass, share(0.15))), (Tiles{0, 5}));
  EXPECT_EQ(tiles_of(take_tiles(coverage(0.8), kTile5, mass, share(0.15))), (Tiles{0, 1, 5}));
}

TEST(TileRule, TopCountsBesideTheForcedTiles) {
  TileRule rule{.choice = TileChoice::kTop, .top_tiles = 2, .recent_tokens = 0};
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 3, 5}));
  rule.top_tiles = 0;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 5}));
  rule.top_tiles = 6;
  EXPECT_TRUE(take_tiles(rule, kTile5, kMass).is_everything());
}

TEST(TileRule, AlphaComparesWithTheHeaviestOfAllTiles) {
  TileRule rule{.choice = TileChoice::kAlpha, .share = share(0.30), .recent_tokens = 0};
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 3, 5})) << ".099";
  rule.share = share(0.31);
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 3, 5})) << ".102";
}

TEST(TileRule, PartCountsTilesThatTheQueryTileSeesBesideTheForcedOnes) {
  TileRule rule{.choice = TileChoice::kPart, .share = share(1.0 / 3), .recent_tokens = 0};
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 3, 5})) << "2 of 6";
  rule.share = share(0.34);
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 2, 3, 5})) << "rounded up";
  rule.share = share(0.9);
  EXPECT_TRUE(take_tiles(rule, kTile5, kMass).is_everything()) << "there are no more";
  rule.share = 0;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 5}));
  rule.min_tiles = 3;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 3, 5}));
  rule.share = kMassOne;
  EXPECT_TRUE(attends_everything(rule, kTile5));
}

// However long the context is, and whatever the pass.
TEST(TileRule, AQuarterOfTheTilesGrowsWithTheQueryTile) {
  TileRule rule{.choice = TileChoice::kPart, .share = kMassOne / 4, .tail_tokens = 0};
  for (const int32_t q_tile : {0, 3, 4, 99, 8191, 1 << 20}) {
    const QueryTile tile{.q_tile = q_tile, .prompt_end = int64_t{1} << 40};
    EXPECT_EQ(part_of_tiles(rule, tile), (q_tile + 4) / 4) << q_tile;
  }
}

TEST(TileRule, EqualMassesGoToTheLowerTile) {
  const std::vector<uint32_t> even(6, share(1.0 / 6));
  TileRule rule{.choice = TileChoice::kTop, .top_tiles = 2, .recent_tokens = 0};
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, even)), (Tiles{0, 1, 2, 5}));
  EXPECT_EQ(tiles_of(take_tiles(coverage(0.6), kTile5, even)), (Tiles{0, 1, 2, 5}));
}

TEST(TileRule, ForcedTilesFollowTokensNotTiles) {
  TileRule rule{.choice = TileChoice::kTop, .sink_tokens = 129, .recent_tokens = 128};
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 4, 5}));
  rule.recent_tokens = 129;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 3, 4, 5}));
  rule.sink_tokens = rule.recent_tokens = 0;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{5})) << "the diagonal always";
}

TEST(TileRule, BoundsFillUpAndCutByMassButKeepForcedTiles) {
  TileRule rule = coverage(0.5);
  rule.min_tiles = 4;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 1, 3, 5}));
  rule = coverage(0.9);
  rule.max_tiles = 3;
  const TileSelection cut = take_tiles(rule, kTile5, kMass);
  EXPECT_EQ(tiles_of(cut), (Tiles{0, 3, 5}));
  EXPECT_EQ(cut.num_cut, 1) << "tile 1 would have been taken";
  rule.max_tiles = 1;
  EXPECT_EQ(tiles_of(take_tiles(rule, kTile5, kMass)), (Tiles{0, 5}));
  EXPECT_EQ(take_tiles(rule, kTile5, kMass).num_cut, 2);
}

TEST(TileRule, RowsNearTheBeginAndTheEndOfThePromptAttendToEverything) {
  TileRule rule = coverage(0.5);
  rule.threshold_tokens = 5 * kTile;
  EXPECT_FALSE(attends_everything(rule, kTile5)) << "its first row is at the threshold";
  rule.threshold_tokens = 5 * kTile + 1;
  EXPECT_TRUE(attends_everything(rule, kTile5));
  rule.threshold_tokens = 0;
  rule.tail_tokens = 100;
  EXPECT_FALSE(attends_everything(rule, {.q_tile = 5, .prompt_end = 6 * kTile + 100}));
  EXPECT_TRUE(attends_everything(rule, {.q_tile = 5, .prompt_end = 6 * kTile + 99}));
  EXPECT_TRUE(attends_everything(rule, {.q_tile = 5, .prompt_end = 5 * kTile + 1}));
  rule.tail_tokens = 0;
  EXPECT_FALSE(attends_everything(rule, {.q_tile = 5, .prompt_end = 5 * kTile + 1}));
  rule.share = kMassOne;
  EXPECT_TRUE(attends_everything(rule, kTile5));
}

TEST(TileRule, WithoutAUsableProbeTheTileAttendsToEverything) {
  EXPECT_TRUE(take_tiles(coverage(0.5), kTile5, std::vector<uint32_t>(6, 0)).is_everything());
}

// One tile after the other: the heaviest of those left, of equal ones the lowest.
std::vector<int32_t> slow_coverage(const TileRule& rule, const QueryTile& tile,
                                   std::vector<uint32_t> mass) {
  double total = 0;
  double covered = 0;
  std::vector<bool> is_set(mass.size(), false);
  for (size_t j = 0; j < mass.size(); ++j) {
    total += mass[j];
    is_set[j] = is_forced(rule, tile, static_cast<int32_t>(j));
    if (is_set[j]) covered += mass[j];
  }
  while (covered * kMassOne < static_cast<double>(rule.share) * total) {
    std::optional<size_t> best;
    for (size_t j = 0; j < mass.size(); ++j) {
      if (!is_set[j] && (!best || mass[j] > mass[*best])) best = j;
    }
    if (!best) break;
    is_set[*best] = true;
    covered += mass[*best];
  }
  Tiles tiles;
  for (size_t j = 0; j < is_set.size(); ++j) {
    if (is_set[j]) tiles.push_back(static_cast<int32_t>(j));
  }
  return tiles;
}

// Masses of a few values have ties; powers of two make the double sums of the slow rule exact.
TEST(TileRule, CoverageIsThatOfTheSlowRule) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto q_tile = static_cast<int32_t>(1 + random() % 60);
    std::vector<uint32_t> mass(static_cast<size_t>(q_tile) + 1);
    for (uint32_t& a : mass) a = uint32_t{1} << (random() % 24);
    TileRule rule = coverage(static_cast<double>(random() % 16) / 16);
    rule.sink_tokens = static_cast<int32_t>(random() % 400);
    rule.recent_tokens = static_cast<int32_t>(random() % 400);
    const QueryTile tile{.q_tile = q_tile, .prompt_end = kLong};
    EXPECT_EQ(tiles_of(take_tiles(rule, tile, mass)), slow_coverage(rule, tile, mass)) << round;
  }
}

}  // namespace
}  // namespace sluice
