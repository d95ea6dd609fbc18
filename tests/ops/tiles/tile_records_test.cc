// What records of tiles mean: the double-precision reference against attention's log-sum-exp, and
// on texts where the kinds of probe must agree or must not; and which tiles have records (visits),
// on every device.
//
// Reveals: probes outside their tile, pools that divide by tokens that do not exist, cells that see
// the future, masses that do not add up. And of tiles that are not visited: rows that move up to a
// wrong place, bits of the wrong list, query tile or word, records that are left as they were.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "ops/reference/attention.h"
#include "ops/reference/tile_selection.h"
#include "ops/tiles/tile_check.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr int32_t kDim = PlantedText::kHeadDim;
constexpr float kNothing = -std::numeric_limits<float>::infinity();
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

// Whether true rows give a distant tile more than its share of the tokens, where rows [begin,
// begin + count) of query tile 4 look at one key of it and all others at everything alike.
bool is_seen(int32_t begin, int32_t count, int32_t rows_per_tile) {
  Machine machine;
  const PlantedText text(
      5 * kTile,
      [=](int32_t position, int32_t) {
        const int32_t row = position - 4 * kTile;
        return axis(0, row >= begin && row < begin + count ? 16.0f : 0.0f);
      },
      [](int32_t position, int32_t) { return axis(0, position == kTile + 7 ? 16.0f : 0.0f); });
  const std::vector<double> masses = reference::tile_masses(
      reference::score_tiles(text.call(machine, {.rows_per_tile = rows_per_tile}, 4 * kTile)),
      {.num_q_heads = 1,
       .num_kv_heads = 1,
       .num_q_tiles = 1,
       .probes_per_tile = rows_per_tile,
       .num_kv_tiles = 5});
  return masses[1] > 0.25;
}

// A single row is missed with probability (128 - n) / 128. A whole part of the tile never is, and
// a run of rows in any place from two parts less one row on.
TEST(TileRecords, RowsThatLookFarAreSeenByTheProbesAmongThem) {
  for (const int32_t per_tile : {1, 2, 4, 8, 16}) {
    int32_t num_missed = 0;
    for (int32_t row = 0; row < kTile; ++row) num_missed += is_seen(row, 1, per_tile) ? 0 : 1;
    EXPECT_EQ(num_missed, kTile - per_tile) << per_tile << " rows";
    const int32_t part = kTile / per_tile;
    for (int32_t begin = 0; begin < kTile; begin += part) {
      EXPECT_TRUE(is_seen(begin, part, per_tile)) << per_tile << " rows, from " << begin;
    }
    for (int32_t begin = 0; begin + 2 * part - 1 <= kTile; ++begin) {
      EXPECT_TRUE(is_seen(begin, 2 * part - 1, per_tile)) << per_tile << " rows, from " << begin;
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

// ---- Visits: which tiles have records
// ------------------------------------------------------------

struct VisitShape {
  int32_t num_kv_heads;
  int32_t group;
  int32_t head_dim;
  int32_t block_tokens;
  int32_t num_tokens;
  int32_t first_pos;
  int32_t rows_per_tile;
  int32_t num_list_heads;

  PlantedText text() const {
    return PlantedText::random(num_tokens, 3, num_kv_heads, group, head_dim);
  }
  ScoreTilesArgs call(Machine& machine) const {
    return text().call(machine, {.rows_per_tile = rows_per_tile}, first_pos, block_tokens);
  }
  int32_t num_q_tiles() const { return num_kv_tiles() - first_pos / kTile; }
  int32_t num_kv_tiles() const { return (num_tokens + kTile - 1) / kTile; }
};

// Groups that do not divide a block of rows, every number of probes, heads that no step of a
// product divides, a last tile of one row, more than one word of bits, and more query tiles than
// stay on a multiprocessor of a GPU.
const VisitShape kVisitShapes[] = {
    {1, 1, 16, 64, 5 * kTile + 1, 0, 1, 1},       {2, 3, 16, 128, 9 * kTile, 2 * kTile, 4, 2},
    {2, 2, 64, 256, 7 * kTile - 1, 0, 2, 1},      {1, 7, 80, 64, 6 * kTile + 70, kTile, 8, 1},
    {3, 1, 128, 128, 5 * kTile, kTile, 16, 3},    {2, 8, 16, 128, 4 * kTile + 5, 0, 4, 2},
    {1, 2, 16, 128, 40 * kTile, 3 * kTile, 4, 1}, {2, 7, 128, 256, 20 * kTile + 5, kTile, 4, 2},
    {1, 1, 64, 64, 70 * kTile, 0, 1, 1},
};

std::string describe(const VisitShape& shape) {
  return fmt::format("{} x {} heads of {}, {} tokens from {}, {} rows, {} lists",
                     shape.num_kv_heads, shape.group, shape.head_dim, shape.num_tokens,
                     shape.first_pos, shape.rows_per_tile, shape.num_list_heads);
}

// One bit in `one_in`, of tiles above the diagonal too, which change nothing.
TileMask random_visits(Machine& machine, const VisitShape& shape, uint32_t one_in) {
  const int64_t num_words = (shape.num_kv_tiles() + 31) / 32;
  std::vector<int32_t> words(
      static_cast<size_t>(shape.num_list_heads * shape.num_q_tiles() * num_words));
  std::mt19937 random(one_in);
  for (int32_t& word : words) {
    for (int bit = 0; bit < 32; ++bit) {
      if (random() % one_in == 0) word |= static_cast<int32_t>(1u << bit);
    }
  }
  return {.bits = machine.tensor(words, {1, shape.num_list_heads, shape.num_q_tiles(), num_words}),
          .first_q_tile = shape.first_pos / kTile};
}

// Whether the record at `index` of [num_q_heads][num_probes][num_kv_tiles] is of a visited tile.
bool is_visited(const VisitShape& shape, const std::vector<int32_t>& words, size_t index) {
  const size_t num_tiles = static_cast<size_t>(shape.num_kv_tiles());
  const auto num_q_tiles = static_cast<size_t>(shape.num_q_tiles());
  const auto per_tile = static_cast<size_t>(shape.rows_per_tile);
  const size_t tile = index % num_tiles;
  const size_t row = index / num_tiles;
  const size_t kv_head = row / (num_q_tiles * per_tile) / static_cast<size_t>(shape.group);
  const size_t entry = row / per_tile % num_q_tiles;
  const size_t list = shape.num_list_heads == 1 ? 0 : kv_head;
  const int32_t word = words[(list * num_q_tiles + entry) * ((num_tiles + 31) / 32) + tile / 32];
  return (static_cast<uint32_t>(word) >> (tile % 32) & 1u) != 0;
}

void poison(const ScoreTilesArgs& args) {
  std::memset(args.records.bytes(), 0xFF, args.records.num_bytes());
}

// The records without visits, and -inf where nothing is visited.
std::vector<float> masked(const VisitShape& shape, std::vector<float> records,
                          const TileMask& visits) {
  const std::vector<int32_t> words = values_of<int32_t>(visits.bits);
  for (size_t i = 0; i < records.size(); ++i) {
    if (!is_visited(shape, words, i)) records[i] = kNothing;
  }
  return records;
}

TEST(TileVisits, VisitedTilesHaveTheRecordsOfTheReferenceAndOthersNone) {
  for (const VisitShape& shape : kVisitShapes) {
    SCOPED_TRACE(describe(shape));
    Machine machine;
    ScoreTilesArgs args = shape.call(machine);
    args.visits = random_visits(machine, shape, 3);
    poison(args);
    score(machine, args);
    expect_records_match(args, reference::score_tiles(args));
  }
}

TEST(TileVisits, VisitedTilesHaveTheBitsThatTheyHaveWithout) {
  for (const VisitShape& shape : kVisitShapes) {
    for (const uint32_t one_in : {1u, 2u, 4u, 30u}) {
      SCOPED_TRACE(fmt::format("{}, one in {}", describe(shape), one_in));
      Machine machine;
      ScoreTilesArgs args = shape.call(machine);
      for (const CpuIsa isa : runnable_isas()) {
        args.visits = {};
        score(machine, args, isa);
        const std::vector<float> without = values_of<float>(args.records);
        args.visits = random_visits(machine, shape, one_in);
        poison(args);
        score(machine, args, isa);
        EXPECT_EQ(values_of<float>(args.records), masked(shape, without, args.visits));
      }
    }
  }
}

// A window takes its own entries of the mask of a pass.
void expect_cuts_change_nothing(const VisitShape& shape) {
  Machine machine;
  ScoreTilesArgs whole = shape.call(machine);
  whole.visits = random_visits(machine, shape, 3);
  score(machine, whole);
  const auto expected = values_of<float>(whole.records);
  const int32_t num_q_heads = shape.num_kv_heads * shape.group;
  for (const TileRows rows :
       {TileRows{0, 3 * kTile}, TileRows{3 * kTile, kTile}, TileRows{4 * kTile, 3 * kTile + 30}}) {
    ScoreTilesArgs part = whole;
    part.rows = rows;
    const int64_t num_probes = int64_t{rows.num_q_tiles()} * shape.rows_per_tile;
    part.vectors = machine.tensor(DType::kBF16, {num_q_heads, num_probes, shape.head_dim});
    part.records = machine.tensor(DType::kF32, {num_q_heads, num_probes, shape.num_kv_tiles()});
    poison(part);
    for (const int32_t begin : {6 * kTile, 0}) {
      ScoreTilesArgs run = part;
      run.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
      run.kv_end =
          machine.tensor(std::vector<int32_t>{std::min(begin + 6 * kTile, shape.num_tokens)}, {1});
      const int64_t first = begin / shape.block_tokens;
      run.block_table = TensorView(part.block_table.bytes() + first * 4, DType::kI32,
                                   {1, part.block_table.dim(1) - first});
      score(machine, run);
    }
    const std::vector<float> records = values_of<float>(part.records);
    const auto length = static_cast<size_t>(num_probes * shape.num_kv_tiles());
    const auto head_length = expected.size() / static_cast<size_t>(num_q_heads);
    const auto first =
        static_cast<size_t>(rows.first / kTile * shape.rows_per_tile * shape.num_kv_tiles());
    for (size_t head = 0; head < static_cast<size_t>(num_q_heads); ++head) {
      const auto from = expected.begin() + static_cast<int64_t>(head * head_length + first);
      const auto own = records.begin() + static_cast<int64_t>(head * length);
      EXPECT_TRUE(std::equal(own, own + static_cast<int64_t>(length), from))
          << "rows from " << rows.first << ", head " << head;
    }
  }
}

TEST(TileVisits, RunsAndWindowsChangeNothing) {
  for (const int32_t head_dim : {16, 64, 128}) {
    SCOPED_TRACE(head_dim);
    expect_cuts_change_nothing({2, 2, head_dim, 128, 9 * kTile + 30, 2 * kTile, 4, 2});
  }
}

// More query tiles than a block of a GPU lists at a time.
TEST(TileVisits, ManyQueryTilesVisitATile) {
  const VisitShape shape{1, 1, 16, 128, 600 * kTile, 0, 1, 1};
  Machine machine;
  ScoreTilesArgs args = shape.call(machine);
  score(machine, args);
  const std::vector<float> without = values_of<float>(args.records);
  args.visits = random_visits(machine, shape, 2);
  poison(args);
  score(machine, args);
  EXPECT_TRUE(values_of<float>(args.records) == masked(shape, without, args.visits));
}

// Keys that are NaN reach no record of a tile that is not visited.
TEST(TileVisits, TilesThatNobodyVisitsAreNotRead) {
  for (const int32_t head_dim : {16, 128}) {
    const VisitShape shape{1, 2, head_dim, 128, 6 * kTile, 0, 4, 1};
    Machine machine;
    ScoreTilesArgs args = shape.call(machine);
    std::fill_n(args.kv.keys<BFloat16>(2, 0), kTile * shape.head_dim, BFloat16(std::nanf("")));
    std::vector<int32_t> words(6, 0x3F & ~(1 << 2));
    args.visits = {.bits = machine.tensor(words, {1, 1, 6, 1})};
    score(machine, args);
    for (const float record : values_of<float>(args.records)) EXPECT_FALSE(std::isnan(record));
  }
}

TEST(TileKvElement, IsRefusedWithoutAKernel) {
  const VisitShape shape{1, 2, 64, 128, 6 * kTile, 0, 4, 1};
  Machine machine;
  ScoreTilesArgs args = shape.call(machine);
  args.kv.shape.element = kElementWithoutKernels;
  expect_no_kernel([&] { score_tiles(machine.stream(), args); });
}

TEST(TileVisitsContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  const PlantedText text = PlantedText::random(3 * kTile, 15, 2, 1);
  ScoreTilesArgs args = text.call(machine, {.kind = TileProbeKind::kPooled});
  args.visits = {.bits = machine.tensor(DType::kI32, {1, 2, 3, 1})};
  EXPECT_DEATH(score_tiles(machine.stream(), args), "visits need probes of kind kRows");
  args = text.call(machine, {.rows_per_tile = 4});
  args.visits = {.bits = machine.tensor(DType::kI32, {1, 2, 2, 1})};
  EXPECT_DEATH(score_tiles(machine.stream(), args), "an entry for every query tile");
  args.visits = {.bits = machine.tensor(DType::kI32, {1, 3, 3, 1})};
  EXPECT_DEATH(score_tiles(machine.stream(), args), "must be 1 or num_kv_heads");
}

}  // namespace
}  // namespace sluice::testing
