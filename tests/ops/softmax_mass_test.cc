// Masses of tokens and tiles, on numbers that can be worked out by hand and against the reference
// of records.
//
// Reveals: a softmax over the wrong tokens, tiles cut at the wrong place, choices that count twice.
#include "ops/reference/softmax_mass.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "ops/reference/tile_selection.h"
#include "planted_text.h"

namespace sluice::testing {
namespace {

using reference::add_token_mass;
using reference::mass_of_best_tokens;
using reference::mass_of_tiles;
using reference::tile_mass;

constexpr double kTolerance = 1e-12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(SoftmaxMass, OfARowIsItsSoftmax) {
  std::vector<double> mass(4);
  ASSERT_TRUE(
      add_token_mass(std::vector<double>{std::log(1.0), std::log(3.0), std::log(4.0)}, mass));
  EXPECT_NEAR(mass[0], 1.0 / 8, kTolerance);
  EXPECT_NEAR(mass[1], 3.0 / 8, kTolerance);
  EXPECT_NEAR(mass[2], 4.0 / 8, kTolerance);
  EXPECT_EQ(mass[3], 0) << "the row does not see it";
  // A second row is added, with scores that overflow without their maximum.
  ASSERT_TRUE(add_token_mass(std::vector<double>{5000.0, 5000.0}, mass));
  EXPECT_NEAR(mass[0], 1.0 / 8 + 0.5, kTolerance);
  EXPECT_NEAR(mass[1], 3.0 / 8 + 0.5, kTolerance);
}

TEST(SoftmaxMass, RowsThatAreNotFiniteAddNothing) {
  const std::vector<double> before = {0.25, 0.5, 0.0};
  for (const std::vector<double>& scores :
       {std::vector<double>{1.0, kInfinity, 2.0}, std::vector<double>{-kInfinity, -kInfinity},
        std::vector<double>{1.0, std::nan(""), 2.0}, std::vector<double>{std::nan("")},
        std::vector<double>{}}) {
    std::vector<double> mass = before;
    EXPECT_FALSE(add_token_mass(scores, mass));
    EXPECT_EQ(mass, before);
  }
}

TEST(SoftmaxMass, TilesAreSumsOf128Tokens) {
  std::vector<double> tokens(2 * kMaskTileTokens + 3);
  tokens[0] = 1;
  tokens[127] = 2;
  tokens[128] = 4;
  tokens[255] = 8;
  tokens[256] = 16;
  tokens[258] = 32;
  const std::vector<double> tiles = tile_mass(tokens);
  EXPECT_EQ(tiles, (std::vector<double>{3, 12, 48}));
  EXPECT_EQ(mass_of_tiles(tiles, {true, false, true}), 51);
  EXPECT_EQ(mass_of_tiles(tiles, {false, false, false}), 0);
}

TEST(SoftmaxMass, TheBestTokensAreTheHeaviestAndThenTheFirst) {
  const std::vector<double> choice = {3, 9, 3, 1, 9};
  const std::vector<double> mass = {1, 2, 4, 8, 16};
  EXPECT_EQ(mass_of_best_tokens(choice, mass, 0), 0);
  EXPECT_EQ(mass_of_best_tokens(choice, mass, 1), 2) << "of two with 9 the first";
  EXPECT_EQ(mass_of_best_tokens(choice, mass, 2), 18);
  EXPECT_EQ(mass_of_best_tokens(choice, mass, 3), 19);
  EXPECT_EQ(mass_of_best_tokens(choice, mass, 4), 23);
  EXPECT_EQ(mass_of_best_tokens(choice, mass, 9), 31) << "there are no more";
}

// Rows, tokens and tiles of a random text: the masses of the reference of records, which adds the
// log-sum-exps of tiles, not tokens.
TEST(SoftmaxMass, AgreesWithTheReferenceOfRecords) {
  Machine machine;
  constexpr int32_t kTokens = 2 * kMaskTileTokens + 50;
  const PlantedText text = PlantedText::random(kTokens, 21, 1, 2);
  const ScoreTilesArgs args = text.call(machine, {});
  const std::vector<double> expected = reference::true_tile_masses(args);
  for (int32_t q_tile = 0; q_tile < 3; ++q_tile) {
    const int32_t end = std::min((q_tile + 1) * kMaskTileTokens, kTokens);
    std::vector<double> tokens(static_cast<size_t>(end));
    int32_t num_rows = 0;
    for (int32_t head = 0; head < 2; ++head) {
      for (int32_t row = q_tile * kMaskTileTokens; row < end; ++row) {
        num_rows += add_token_mass(reference::row_scores(args, head, row), tokens) ? 1 : 0;
      }
    }
    const std::vector<double> tiles = tile_mass(tokens);
    ASSERT_EQ(std::ssize(tiles), q_tile + 1);
    EXPECT_NEAR(std::accumulate(tiles.begin(), tiles.end(), 0.0), num_rows, 1e-9);
    for (size_t j = 0; j < tiles.size(); ++j) {
      EXPECT_NEAR(tiles[j] / num_rows, expected[static_cast<size_t>(q_tile) * 3 + j], 1e-9);
    }
  }
}

}  // namespace
}  // namespace sluice::testing
