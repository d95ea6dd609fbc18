// What records of tiles mean: the double-precision reference against attention's log-sum-exp, and
// on texts where the kinds of probe must agree or must not.
//
// Reveals: probes outside their tile, pools that divide by tokens that do not exist, cells that see
// the future, masses that do not add up.
#include <cmath>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "ops/reference/attention.h"
#include "ops/reference/tile_selection.h"
#include "planted_text.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr int32_t kDim = PlantedText::kHeadDim;
constexpr double kTolerance = 1e-9;  // of double sums of a few hundred terms

// One direction of the head's space.
std::vector<float> axis(int32_t channel, float length) {
  std::vector<float> numbers(static_cast<size_t>(kDim));
  numbers[static_cast<size_t>(channel)] = length;
  return numbers;
}

double log_sum_exp(const double* first, int64_t count) {
  const double largest = *std::max_element(first, first + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(first[i] - largest);
  return largest + std::log(sum);
}

TEST(TileRecords, ProbesLieInTheirPartsAndDifferBetweenTiles) {
  std::set<int32_t> first_offsets;
  for (const int32_t per_tile : {1, 2, 4, 8, 16}) {
    const int32_t part = kTile / per_tile;
    for (int32_t tile = 0; tile < 50; ++tile) {
      for (int32_t i = 0; i < per_tile; ++i) {
        const int32_t begin = tile * kTile + i * part;
        EXPECT_GE(probe_row(tile, i, per_tile), begin);
        EXPECT_LT(probe_row(tile, i, per_tile), begin + part);
      }
      if (per_tile == 4) first_offsets.insert(probe_row(tile, 0, per_tile) - tile * kTile);
    }
  }
  EXPECT_GT(first_offsets.size(), 20u) << "50 tiles, 32 places";
}

// The records of a true row add up to the log-sum-exp of its attention.
TEST(TileRecords, OfTrueRowsAddUpToAttention) {
  Machine machine;
  const PlantedText text = PlantedText::random(3 * kTile + 37, 3, 2, 3);
  const ScoreTilesArgs args = text.call(machine, {.rows_per_tile = 8}, kTile);
  const std::vector<double> lse =
      reference::attention_log_sum_exp({.q = args.q,
                                        .out = {},
                                        .scale = args.scale,
                                        .batch = args.batch,
                                        .kv = args.kv,
                                        .kv_begin = args.kv_begin,
                                        .kv_end = args.kv_end,
                                        .block_table = args.block_table});
  const std::vector<double> records = reference::score_tiles(args);
  constexpr int32_t kProbes = 3 * 8, kTiles = 4, kHeads = 6;
  ASSERT_EQ(records.size(), static_cast<size_t>(kHeads * kProbes * kTiles));
  for (int32_t head = 0; head < kHeads; ++head) {
    for (int32_t probe = 0; probe < kProbes; ++probe) {
      const int32_t row = std::min(probe_row(1 + probe / 8, probe % 8, 8), 3 * kTile + 36) - kTile;
      EXPECT_NEAR(
          log_sum_exp(&records[static_cast<size_t>((head * kProbes + probe) * kTiles)], kTiles),
          lse[static_cast<size_t>(row * kHeads + head)], kTolerance)
          << "head " << head << ", probe " << probe;
    }
  }
}

TEST(TileRecords, MassesOfATileAddUpToOne) {
  Machine machine;
  const PlantedText text = PlantedText::random(2 * kTile + 5, 4, 2, 2);
  for (const TileProbes& probes :
       {TileProbes{.rows_per_tile = 4}, TileProbes{.kind = TileProbeKind::kAntidiagonal},
        TileProbes{.kind = TileProbeKind::kPooled},
        TileProbes{
            .kind = TileProbeKind::kPooled, .query_pool_tokens = 16, .pools_maxima = true}}) {
    const std::vector<double> masses =
        reference::tile_masses(reference::score_tiles(text.call(machine, probes)),
                               {.num_q_heads = 4,
                                .num_kv_heads = 2,
                                .num_q_tiles = 3,
                                .probes_per_tile = probes_per_tile(probes),
                                .num_kv_tiles = 3});
    for (size_t tile = 0; tile < 2 * 3; ++tile) {
      const double* mass = &masses[tile * 3];
      EXPECT_NEAR(std::accumulate(mass, mass + 3, 0.0), 1.0, kTolerance) << tile;
      for (size_t j = tile % 3 + 1; j < 3; ++j) EXPECT_EQ(mass[j], 0.0) << "above the diagonal";
    }
  }
}

// Where all rows and keys of a stride or a pool are equal, nothing is lost by taking them together:
// a cell has the score of each of its pairs, and stands for `stride` keys.
TEST(TileRecords, CellsAndPoolsOfEqualTokensAreExact) {
  Machine machine;
  const auto step = [](int32_t position, int32_t) {
    return axis(position / 16 % kDim, 1.0f + static_cast<float>(position / 16 % 7));
  };
  const PlantedText text(3 * kTile, step, step);
  const std::vector<double> rows = reference::score_tiles(text.call(machine, {.rows_per_tile = 8}));
  const std::vector<double> cells = reference::score_tiles(
      text.call(machine, {.kind = TileProbeKind::kAntidiagonal, .stride = 16}));
  const std::vector<double> pools = reference::score_tiles(
      text.call(machine, {.kind = TileProbeKind::kPooled, .query_pool_tokens = 16}));
  // Eight probes a tile, each in its own 16 rows; tiles of the third query tile left of it.
  for (size_t probe = 16; probe < 24; ++probe) {
    for (size_t tile = 0; tile < 2; ++tile) {
      const size_t at = probe * 3 + tile;
      EXPECT_NEAR(cells[at], rows[at] - std::log(16.0), kTolerance);
      EXPECT_NEAR(pools[at], rows[at], kTolerance);
    }
  }
}

// Two neighbouring keys that cancel: an antidiagonal sum of them is 0, a true row sees the one.
TEST(TileRecords, AntidiagonalsMissKeysThatCancelAndRowsDoNot) {
  Machine machine;
  const auto queries = [](int32_t, int32_t) { return axis(0, 8.0f); };
  const auto keys = [](int32_t position, int32_t) {
    const bool is_planted = position / kTile == 1;
    return axis(0, is_planted ? (position % 2 == 0 ? 8.0f : -8.0f) : 0.0f);
  };
  const PlantedText text(4 * kTile, queries, keys);
  const auto mass_of_planted = [&](const TileProbes& probes) {
    const std::vector<double> masses =
        reference::tile_masses(reference::score_tiles(text.call(machine, probes)),
                               {.num_q_heads = 1,
                                .num_kv_heads = 1,
                                .num_q_tiles = 4,
                                .probes_per_tile = probes_per_tile(probes),
                                .num_kv_tiles = 4});
    return masses[3 * 4 + 1];
  };
  EXPECT_GT(mass_of_planted({.rows_per_tile = 1}), 0.999);
  EXPECT_NEAR(mass_of_planted({.kind = TileProbeKind::kAntidiagonal}), 0.25, 0.05);
  EXPECT_NEAR(mass_of_planted({.kind = TileProbeKind::kPooled}), 0.25, 0.05);
}

// The last tile has 5 rows and keys. Pools divide by 5, cells add 0 for the other 11.
TEST(TileRecords, TokensThatDoNotExistHaveNoInfluence) {
  Machine machine;
  const auto numbers = [](int32_t, int32_t) { return axis(0, 2.0f); };
  const PlantedText text(kTile + 5, numbers, numbers);
  const double score = 0.25 * 4;
  const std::vector<double> pools =
      reference::score_tiles(text.call(machine, {.kind = TileProbeKind::kPooled}));
  EXPECT_NEAR(pools[1 * 2 + 1], score + std::log(5.0), kTolerance);
  EXPECT_NEAR(pools[1 * 2 + 0], score + std::log(128.0), kTolerance);
  const std::vector<double> cells =
      reference::score_tiles(text.call(machine, {.kind = TileProbeKind::kAntidiagonal}));
  EXPECT_NEAR(cells[8 * 2 + 1], 0.0, kTolerance)
      << "row 16 m + 15 - t and key 16 c + t do not both exist for any t";
  const std::vector<double> rows = reference::score_tiles(text.call(machine, {.rows_per_tile = 2}));
  EXPECT_NEAR(rows[3 * 2 + 1], score + std::log(5.0), kTolerance) << "clipped to the last row";
}

TEST(TileRecords, TrueMassesAreThoseOfAllRows) {
  Machine machine;
  const PlantedText text = PlantedText::random(2 * kTile, 9);
  const std::vector<double> masses = reference::true_tile_masses(text.call(machine, {}));
  ASSERT_EQ(masses.size(), 4u);
  EXPECT_NEAR(masses[0], 1.0, kTolerance);
  EXPECT_EQ(masses[1], 0.0);
  EXPECT_NEAR(masses[2] + masses[3], 1.0, kTolerance);
  EXPECT_GT(masses[2], masses[3]) << "128 keys against 64 on average, all alike";
}

}  // namespace
}  // namespace sluice::testing
