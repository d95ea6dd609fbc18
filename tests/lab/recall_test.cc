// The parts of sluice-lab recall on planted queries and keys, whose oracle is known.
//
// Reveals: true masses of the wrong rows or keys, controls that depend on the text, estimators
// called with other arguments than the engine's, means over the wrong heads.
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "attention/policy_pair.h"
#include "lab/recall/recall_choices.h"
#include "lab/recall/recall_rig.h"
#include "lab/recall/recall_tally.h"
#include "ops/attention/attention.h"
#include "ops/reference/softmax_mass.h"

namespace sluice::lab {

namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr int32_t kDim = 16;
constexpr RecallAsk kTenth{.share = 0.1};

using Numbers = std::function<float(int64_t token, int32_t head, int32_t channel)>;

std::vector<float> numbers_of(int64_t num_tokens, int32_t num_heads, const Numbers& number) {
  std::vector<float> values;
  for (int64_t token = 0; token < num_tokens; ++token) {
    for (int32_t head = 0; head < num_heads; ++head) {
      for (int32_t channel = 0; channel < kDim; ++channel) {
        // bf16 as in the engine, so that nothing is rounded on the way.
        values.push_back(static_cast<float>(BFloat16(number(token, head, channel))));
      }
    }
  }
  return values;
}

Numbers random_numbers(uint32_t seed) {
  return [generator = std::mt19937(seed)](int64_t, int32_t, int32_t) mutable {
    return std::normal_distribution<float>()(generator);
  };
}

// Two KV heads with two query heads each.
RecallShape shape_of(int32_t num_tiles) {
  return {.num_tokens = int64_t{num_tiles} * kTile,
          .num_q_heads = 4,
          .num_kv_heads = 2,
          .head_dim = kDim,
          .scale = 0.25f};
}

// A rig with its queries and keys, whose masses the test adds up itself.
struct Planted {
  Planted(int32_t num_tiles, const Numbers& queries, const Numbers& keys)
      : shape(shape_of(num_tiles)),
        q(numbers_of(shape.num_tokens, shape.num_q_heads, queries)),
        k(numbers_of(shape.num_tokens, shape.num_kv_heads, keys)),
        rig(shape, 2) {
    rig.load(q, k);
  }

  // The mass that the tokens with `takes(token)` hold for a row, added up in double precision.
  double mass_of_row(int32_t q_head, int64_t row, const std::function<bool(int64_t)>& takes) const {
    double all = 0, taken = 0;
    for (int64_t token = 0; token <= row; ++token) {
      double product = 0;
      for (int32_t c = 0; c < kDim; ++c) {
        product += double{q[static_cast<size_t>((row * shape.num_q_heads + q_head) * kDim + c)]} *
                   k[static_cast<size_t>((token * shape.num_kv_heads + q_head / 2) * kDim + c)];
      }
      const double weight = std::exp(0.25 * product);
      all += weight;
      taken += takes(token) ? weight : 0;
    }
    return taken / all;
  }

  double mass_of_tile(int32_t q_head, int32_t q_tile,
                      const std::function<bool(int64_t)>& takes) const {
    double sum = 0;
    for (int64_t row = 0; row < kTile; ++row) {
      sum += mass_of_row(q_head, q_tile * kTile + row, takes);
    }
    return sum / kTile;
  }

  RecallShape shape;
  std::vector<float> q, k;
  RecallRig rig;
};

std::vector<int32_t> set_tiles(const std::vector<bool>& is_set) {
  std::vector<int32_t> tiles;
  for (size_t j = 0; j < is_set.size(); ++j) {
    if (is_set[j]) tiles.push_back(static_cast<int32_t>(j));
  }
  return tiles;
}

// The mean over the query heads of a KV head.
std::vector<double> group_mean(const std::vector<std::vector<double>>& masses, int32_t kv_head) {
  std::vector<double> mean = masses[static_cast<size_t>(kv_head) * 2];
  for (size_t j = 0; j < mean.size(); ++j) {
    mean[j] = (mean[j] + masses[static_cast<size_t>(kv_head) * 2 + 1][j]) / 2;
  }
  return mean;
}

TEST(RecallChoices, TilesOfAShareIncludeTheForcedOnes) {
  EXPECT_EQ(num_tiles_of(0.1, 63), 6);
  EXPECT_EQ(num_tiles_of(0.1, 16), 3) << "sink, diagonal and the tile before it";
  EXPECT_EQ(num_tiles_of(0.1, 0), 1) << "there is one";
  EXPECT_EQ(num_tiles_of(1.0, 20), 21);
  for (const int32_t q_tile : {0, 1, 2, 3, 17, 63}) {
    for (const double share : {0.05, 0.2, 0.5}) {
      const std::vector<bool> chosen =
          choose_tiles({.share = share}, q_tile, newest_masses(q_tile));
      EXPECT_EQ(std::ssize(set_tiles(chosen)), num_tiles_of(share, q_tile)) << q_tile;
      EXPECT_TRUE(chosen.front() && chosen.back());
    }
  }
}

TEST(RecallChoices, TheWindowIsTheSinkAndTheNewestTiles) {
  EXPECT_EQ(set_tiles(choose_tiles(kTenth, 63, newest_masses(63))),
            (std::vector<int32_t>{0, 59, 60, 61, 62, 63}));
}

// Tiles that are not forced are equally likely, so that uniform mass is captured by its share.
TEST(RecallChoices, RandomTilesAreUniformAndSeeded) {
  constexpr int32_t kQTile = 40;
  EXPECT_EQ(random_masses(kQTile, 7), random_masses(kQTile, 7));
  EXPECT_NE(random_masses(kQTile, 7), random_masses(kQTile, 8));
  std::vector<int32_t> times(kQTile + 1);
  constexpr int32_t kDraws = 2000;
  for (int32_t draw = 0; draw < kDraws; ++draw) {
    const auto chosen =
        choose_tiles({.share = 0.25}, kQTile, random_masses(kQTile, static_cast<uint64_t>(draw)));
    for (const int32_t tile : set_tiles(chosen)) ++times[static_cast<size_t>(tile)];
  }
  // 10 tiles, 3 of them forced, 7 among 38.
  const double expected = kDraws * 7.0 / 38;
  for (size_t tile = 1; tile < 39; ++tile) {
    EXPECT_NEAR(times[tile], expected, 6 * std::sqrt(expected)) << tile;
  }
  EXPECT_EQ(times[0], kDraws);
}

TEST(RecallChoices, CoverageIsOfTheTrueMass) {
  std::vector<double> mass(21, 0.01);
  mass[0] = 0.1, mass[20] = 0.2, mass[5] = 0.3, mass[9] = 0.23;  // and 17 of 0.01
  const RecallAsk ask{.is_coverage = true, .share = 0.8};
  EXPECT_EQ(set_tiles(choose_tiles(ask, 20, rounded_masses(mass))),
            (std::vector<int32_t>{0, 5, 9, 19, 20}))
      << "0.31 forced, then 0.3 and 0.23";
}

TEST(RecallChoices, QueryTilesAreChosenByAHash) {
  EXPECT_EQ(sampled_tiles(16, 20, 0), (std::vector<int32_t>{16, 17, 18, 19}));
  EXPECT_EQ(sampled_tiles(16, 20, 9), (std::vector<int32_t>{16, 17, 18, 19}));
  EXPECT_TRUE(sampled_tiles(16, 16, 4).empty());
  const std::vector<int32_t> some = sampled_tiles(16, 116, 10);
  EXPECT_EQ(some, sampled_tiles(16, 116, 10));
  ASSERT_EQ(some.size(), 10u);
  EXPECT_TRUE(std::is_sorted(some.begin(), some.end()));
  EXPECT_GE(some.front(), 16);
  EXPECT_LT(some.back(), 116);
  EXPECT_GT(some.back() - some.front(), 40) << "not a run of neighbours";
}

TEST(RecallChoices, ColumnsAreAsMuchWorkAsTheTilesTheyReplace) {
  for (const int32_t q_tile : {16, 40, 63, 200}) {
    for (const double share : {0.05, 0.1, 0.2, 0.5}) {
      const RecallAsk ask{.share = share};
      const int32_t tiles = rule_of(ask, q_tile).tiles.top_tiles;
      const RecallRule columns = rule_of(ask, q_tile, RecallColumns::kOfRows);
      EXPECT_EQ(columns.column_tiles, tiles > 0 ? 1 : 0) << "one tile of 128, if there is room";
      EXPECT_EQ(columns.tiles.top_tiles + columns.column_tiles, tiles);
      const RecallRule verticals = rule_of(ask, q_tile, RecallColumns::kVerticals);
      EXPECT_EQ(verticals.tiles.top_tiles + verticals.column_tiles, tiles);
      EXPECT_GE(verticals.tiles.top_tiles, 0);
    }
  }
  const RecallAsk fifth{.share = 0.2};
  EXPECT_EQ(rule_of(fifth, 199, RecallColumns::kVerticals).column_tiles, 8) << "a fifth of 40";
  EXPECT_EQ(rule_of({.is_coverage = true, .share = 0.9}, 40, RecallColumns::kOfRows).column_tiles,
            1);
}

// A list by hand: columns in a set tile and in a later tile are not read.
TEST(RecallChoices, ReadsTilesAndTheColumnsBesideThem) {
  std::vector<int32_t> bits = {0, 0b00101, 0, 0b10001};  // two lists of two query tiles, 3 and 4
  std::vector<int32_t> positions(2 * 2 * 256), count = {0, 0, 0, 130};
  for (int32_t i = 0; i < 128; ++i) positions[3 * 256 + static_cast<size_t>(i)] = i;
  positions[3 * 256 + 128] = 300;
  positions[3 * 256 + 129] = 700;
  const TileMask mask{.bits = TensorView(bits.data(), DType::kI32, {1, 2, 2, 1}),
                      .first_q_tile = 3};
  const TileColumns columns{.positions = TensorView(positions.data(), DType::kI32, {2, 2, 256}),
                            .count = TensorView(count.data(), DType::kI32, {2, 2}),
                            .kv = {},
                            .segment_tokens = 512,
                            .first_segment = 0};
  const RecallChoice choice = read_choice(mask, columns, 1, 4);
  EXPECT_EQ(set_tiles(choice.tiles), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(choice.columns, (std::vector<int32_t>{300}));
  EXPECT_EQ(choice.num_column_tiles, 1) << "of the first nothing is left";
  EXPECT_NEAR(choice.work(), 3.0 / 5, 1e-12);
  EXPECT_EQ(set_tiles(read_choice(mask, columns, 0, 4).tiles), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(std::ssize(set_tiles(read_choice({}, {}, 0, 4).tiles)), 5) << "no mask: all";
}

TEST(RecallRig, MassesAreThoseOfADirectSum) {
  Planted planted(4, random_numbers(1), random_numbers(2));
  const auto masses = planted.rig.token_masses(2);
  ASSERT_EQ(masses.size(), 4u);
  for (int32_t head = 0; head < 4; ++head) {
    const auto& mass = masses[static_cast<size_t>(head)];
    ASSERT_EQ(mass.size(), size_t{3 * kTile});
    EXPECT_NEAR(std::accumulate(mass.begin(), mass.end(), 0.0), 1, 1e-9);
    for (const int64_t token : {0, 1, 127, 128, 200, 300, 383}) {
      const double expected = planted.mass_of_tile(head, 2, [=](int64_t t) { return t == token; });
      EXPECT_NEAR(mass[static_cast<size_t>(token)], expected, 1e-5 * expected) << token;
    }
  }
}

TEST(RecallRig, AWindowHoldsWhatADirectSumSays) {
  Planted planted(8, random_numbers(3), random_numbers(4));
  const auto masses = planted.rig.token_masses(7);
  const std::vector<bool> window = choose_tiles({.share = 0.5}, 7, newest_masses(7));
  EXPECT_EQ(set_tiles(window), (std::vector<int32_t>{0, 5, 6, 7}));
  for (int32_t head = 0; head < 4; ++head) {
    const double expected = planted.mass_of_tile(
        head, 7, [](int64_t token) { return token < kTile || token >= 5 * kTile; });
    EXPECT_NEAR(
        reference::mass_of_tiles(reference::tile_mass(masses[static_cast<size_t>(head)]), window),
        expected, 1e-6);
  }
}

// Keys without direction: every token has the same mass, and so has every list of equal tiles.
TEST(RecallRig, UniformMassIsCapturedByItsShare) {
  Planted planted(16, random_numbers(5), [](int64_t, int32_t, int32_t) { return 0.0f; });
  const auto tiles = reference::tile_mass(planted.rig.token_masses(15)[1]);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto chosen = choose_tiles({.share = 0.5}, 15, random_masses(15, seed));
    EXPECT_NEAR(reference::mass_of_tiles(tiles, chosen), 8.0 / 16, 0.04)
        << "the diagonal has half a tile of 15.5";
  }
}

// One far tile holds nearly everything, another one for each KV head; and eight single tokens in
// eight tiles hold what no three tiles do.
TEST(RecallRig, FindsPlantedTilesAndTokens) {
  const auto queries = [](int64_t, int32_t head, int32_t channel) {
    return channel == head / 2 ? 8.0f : 0.0f;
  };
  const auto tile_keys = [](int64_t token, int32_t head, int32_t channel) {
    return channel == head && token / kTile == 5 + 3 * head ? 6.0f : 0.0f;
  };
  Planted tiles(16, queries, tile_keys);
  const auto masses = tiles.rig.token_masses(15);
  for (int32_t kv_head = 0; kv_head < 2; ++kv_head) {
    const auto mean = reference::tile_mass(group_mean(masses, kv_head));
    const auto oracle = choose_tiles({.share = 0.25}, 15, rounded_masses(mean));
    EXPECT_TRUE(oracle[static_cast<size_t>(5 + 3 * kv_head)]);
    EXPECT_GT(reference::mass_of_tiles(mean, oracle), 0.999);
    EXPECT_LT(reference::mass_of_tiles(mean, choose_tiles({.share = 0.25}, 15, newest_masses(15))),
              0.01);
    for (const Estimator& estimator : all_estimators()) {
      const RecallRule rule = rule_of({.share = 0.25}, 15, estimator.columns);
      const auto chosen = tiles.rig.select(estimator, 15, {&rule, 1});
      const RecallChoice& choice = chosen[0][static_cast<size_t>(kv_head)];
      // The column tile is the fourth: it holds the same tokens.
      const auto held = mass_of_choice(choice, mean, group_mean(masses, kv_head));
      EXPECT_GT(held, estimator.columns == RecallColumns::kNone ? 0.999 : 0.9) << estimator.name;
    }
  }
  Planted tokens(16, queries, [](int64_t token, int32_t head, int32_t channel) {
    return channel == head && token % kTile == 77 && token / kTile < 8 ? 6.0f : 0.0f;
  });
  const auto mean = group_mean(tokens.rig.token_masses(15), 0);
  const auto in_tiles = reference::tile_mass(mean);
  const auto oracle = choose_tiles({.share = 0.25}, 15, rounded_masses(in_tiles));
  EXPECT_NEAR(reference::mass_of_tiles(in_tiles, oracle), 2.0 / 8, 0.01) << "sink and one more";
  EXPECT_GT(reference::mass_of_best_tokens(mean, mean, 8), 0.99);
}

// Where all rows of a tile are equal, one row says what all say, and every number of rows is exact.
TEST(RecallRig, RowsOfAConstantQueryTileAreTheOracle) {
  auto numbers = random_numbers(6);
  std::vector<float> constant;
  for (int i = 0; i < 4 * kDim; ++i) constant.push_back(2 * numbers(0, 0, 0));
  Planted planted(
      24,
      [&](int64_t, int32_t head, int32_t channel) {
        return constant[static_cast<size_t>(head * kDim + channel)];
      },
      random_numbers(7));
  const std::vector<RecallAsk> asks = {
      {.share = 0.2}, {.share = 0.5}, {.is_coverage = true, .share = 0.9}};
  std::vector<RecallRule> rules;
  for (const RecallAsk& ask : asks) rules.push_back(rule_of(ask, 23));
  const auto masses = planted.rig.token_masses(23);
  for (const int32_t rows : {1, 16}) {
    const auto chosen = planted.rig.select({.probes = {.rows_per_tile = rows}}, 23, rules);
    for (size_t ask = 0; ask < 2; ++ask) {
      for (int32_t kv_head = 0; kv_head < 2; ++kv_head) {
        const auto mean = reference::tile_mass(group_mean(masses, kv_head));
        EXPECT_EQ(set_tiles(chosen[ask][static_cast<size_t>(kv_head)].tiles),
                  set_tiles(choose_tiles(asks[ask], 23, rounded_masses(mean))))
            << rows << " rows, ask " << ask << ", KV head " << kv_head;
        EXPECT_GE(reference::mass_of_tiles(mean, chosen[2][static_cast<size_t>(kv_head)].tiles),
                  0.89);
      }
    }
  }
}

const Estimator& estimator_named(const std::vector<Estimator>& all, RecallColumns columns) {
  return *std::find_if(all.begin(), all.end(),
                       [=](const Estimator& estimator) { return estimator.columns == columns; });
}

// Mass of tiles and columns against a sum of exponentials over the same tokens, row by row; the
// last segment is cut off by the end of the text.
TEST(RecallRig, TilesAndColumnsHoldWhatADirectSumSays) {
  Planted planted(22, random_numbers(12), random_numbers(13));
  const auto estimators = all_estimators();
  for (const RecallColumns columns : {RecallColumns::kOfRows, RecallColumns::kVerticals}) {
    for (const int32_t q_tile : {9, 21}) {
      const RecallRule rule = rule_of({.share = 0.4}, q_tile, columns);
      const auto chosen =
          planted.rig.select(estimator_named(estimators, columns), q_tile, {&rule, 1});
      const auto masses = planted.rig.token_masses(q_tile);
      for (size_t head = 0; head < 4; ++head) {
        const RecallChoice& choice = chosen[0][head / 2];
        EXPECT_LE(choice.work(), static_cast<double>(num_tiles_of(0.4, q_tile)) / (q_tile + 1));
        ASSERT_GT(choice.columns.size(), 20u);
        std::vector<bool> is_taken(static_cast<size_t>(q_tile + 1) * kTile);
        for (size_t token = 0; token < is_taken.size(); ++token) {
          is_taken[token] = choice.tiles[token / kTile];
        }
        for (const int32_t token : choice.columns) is_taken[static_cast<size_t>(token)] = true;
        const auto takes = [&](int64_t token) { return is_taken[static_cast<size_t>(token)]; };
        const double held =
            mass_of_choice(choice, reference::tile_mass(masses[head]), masses[head]);
        EXPECT_NEAR(held, planted.mass_of_tile(static_cast<int32_t>(head), q_tile, takes), 1e-6);
        EXPECT_GT(held, reference::mass_of_tiles(reference::tile_mass(masses[head]), choice.tiles));
      }
    }
  }
}

// Eight single tokens in eight tiles: a tile of columns holds all, three tiles two of them.
TEST(RecallRig, ColumnsFindPlantedTokens) {
  Planted planted(
      16, [](int64_t, int32_t head, int32_t channel) { return channel == head / 2 ? 8.0f : 0.0f; },
      [](int64_t token, int32_t head, int32_t channel) {
        return channel == head && token % kTile == 77 && token / kTile >= 1 && token / kTile < 9
                   ? 6.0f
                   : 0.0f;
      });
  const auto masses = planted.rig.token_masses(15);
  const auto estimators = all_estimators();
  for (const RecallColumns columns :
       {RecallColumns::kNone, RecallColumns::kOfRows, RecallColumns::kVerticals}) {
    const RecallRule rule = rule_of({.share = 0.25}, 15, columns);
    const auto chosen = planted.rig.select(estimator_named(estimators, columns), 15, {&rule, 1});
    const double held = mass_of_choice(chosen[0][1], reference::tile_mass(masses[2]), masses[2]);
    if (columns == RecallColumns::kNone) {
      EXPECT_NEAR(held, 1.0 / 8, 0.01) << "sink, window and one more";
    } else {
      EXPECT_GT(held, 0.99);
    }
  }
}

// The estimators are the engine's policies: the same selection for every query tile.
TEST(RecallRig, ColumnsAreThoseOfThePolicies) {
  Planted planted(40, random_numbers(14), random_numbers(15));
  const auto estimators = all_estimators();
  const auto compare = [&](RecallColumns columns, const RecallRule& rule, const char* policy,
                           const SparseOptions& options) {
    const auto pair = make_policies(policy, options);
    const MaskedTiles masks = *masked_in(planted.rig.select(*pair, 0));
    std::vector<std::vector<RecallChoice>> expected;
    for (const int32_t q_tile : {4, 17, 31, 32, 38}) {
      auto& heads = expected.emplace_back();
      for (int32_t head = 0; head < 2; ++head) {
        heads.push_back(read_choice(masks.mask, masks.columns, head, q_tile));
      }
    }
    for (size_t i = 0; const int32_t q_tile : {4, 17, 31, 32, 38}) {
      const auto chosen =
          planted.rig.select(estimator_named(estimators, columns), q_tile, {&rule, 1});
      for (size_t head = 0; head < 2; ++head) {
        EXPECT_EQ(chosen[0][head].tiles, expected[i][head].tiles) << policy << " " << q_tile;
        EXPECT_EQ(chosen[0][head].columns, expected[i][head].columns) << policy << " " << q_tile;
      }
      ++i;
    }
  };
  compare(RecallColumns::kOfRows,
          rule_of({.is_coverage = true, .share = 0.7}, 38, RecallColumns::kOfRows), "sampled+full",
          {.threshold_tokens = 0, .coverage = 0.7});
  RecallRule lines = rule_of({.share = 0.4}, 38, RecallColumns::kVerticals);
  compare(RecallColumns::kVerticals, lines, "minference+full",
          {.threshold_tokens = 0,
           .vertical_tokens = lines.column_tiles * kTile,
           .slash_tokens = (lines.tiles.top_tiles + 2) * kTile});
}

TEST(RecallRig, TakesAnotherLayerAndAnyNumberOfThreads) {
  Planted first(4, random_numbers(8), random_numbers(9));
  Planted second(4, random_numbers(10), random_numbers(11));
  const auto expected = second.rig.token_masses(3);
  first.rig.load(second.q, second.k);
  EXPECT_EQ(first.rig.token_masses(3), expected);
  RecallRig alone(second.shape, 1);
  alone.load(second.q, second.k);
  EXPECT_EQ(alone.token_masses(3), expected);
}

TEST(RecallTally, MeansAreOfHeadsAndTheLowEndIsAHead) {
  RecallTally tally(2, 40);
  for (int64_t head = 0; head < 40; ++head) {
    // Heads with more tiles do not weigh more.
    for (int64_t tile = 0; tile <= head % 3; ++tile) {
      tally.add(0, head, 0.5 + 0.01 * static_cast<double>(head), 0.1 * static_cast<double>(tile));
      tally.add(1, head, 1, 1);
    }
  }
  EXPECT_NEAR(tally.head_mean(0, 7), 0.57, 1e-12);
  const RecallSummary summary = tally.summary(0);
  EXPECT_NEAR(summary.mean, 0.5 + 0.01 * 19.5, 1e-12);
  EXPECT_NEAR(summary.p5, 0.52, 1e-12) << "two of 40 have less";
  EXPECT_NEAR(summary.tile_share, 0.05 * (14 * 0 + 13 * 1 + 13 * 2) / 40, 1e-12);
  EXPECT_NEAR(lost_of_oracle({.mean = 0.7}, {.mean = 0.8}), 1.5, 1e-12);
  EXPECT_EQ(lost_of_oracle(tally.summary(1), {.mean = 1}), 1) << "neither loses anything";
}

}  // namespace
}  // namespace sluice::lab
