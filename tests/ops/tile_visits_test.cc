// score_tiles with visits: the tiles that are scored have the bits that they have without, the
// others are nothing, whatever the cut into runs and windows; on every device.
//
// Reveals: rows that move up to a wrong place, bits of the wrong list, query tile or word, records
// of tiles that are left as they were, keys that are read although no row visits them.
#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "ops/reference/tile_selection.h"
#include "tile_check.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Shape {
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
// product divides, a last tile of one row, and more than one word of bits.
const Shape kShapes[] = {
    {1, 1, 16, 64, 5 * kTile + 1, 0, 1, 1},       {2, 3, 16, 128, 9 * kTile, 2 * kTile, 4, 2},
    {2, 2, 64, 256, 7 * kTile - 1, 0, 2, 1},      {1, 7, 80, 64, 6 * kTile + 70, kTile, 8, 1},
    {3, 1, 128, 128, 5 * kTile, kTile, 16, 3},    {2, 8, 16, 128, 4 * kTile + 5, 0, 4, 2},
    {1, 2, 16, 128, 40 * kTile, 3 * kTile, 4, 1},
};

std::string describe(const Shape& shape) {
  return fmt::format("{} x {} heads of {}, {} tokens from {}, {} rows, {} lists",
                     shape.num_kv_heads, shape.group, shape.head_dim, shape.num_tokens,
                     shape.first_pos, shape.rows_per_tile, shape.num_list_heads);
}

// One bit in `one_in`, of tiles above the diagonal too, which change nothing.
TileMask random_visits(Machine& machine, const Shape& shape, uint32_t one_in) {
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
bool is_visited(const Shape& shape, const std::vector<int32_t>& words, size_t index) {
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
std::vector<float> masked(const Shape& shape, std::vector<float> records, const TileMask& visits) {
  const std::vector<int32_t> words = values_of<int32_t>(visits.bits);
  for (size_t i = 0; i < records.size(); ++i) {
    if (!is_visited(shape, words, i)) records[i] = kNothing;
  }
  return records;
}

TEST(TileVisits, VisitedTilesHaveTheRecordsOfTheReferenceAndOthersNone) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    Machine machine;
    ScoreTilesArgs args = shape.call(machine);
    args.visits = random_visits(machine, shape, 3);
    std::vector<double> expected = reference::score_tiles(args);
    const std::vector<int32_t> words = values_of<int32_t>(args.visits.bits);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!is_visited(shape, words, i)) expected[i] = kNothing;
    }
    poison(args);
    score(machine, args);
    expect_records_match(args, expected);
  }
}

TEST(TileVisits, VisitedTilesHaveTheBitsThatTheyHaveWithout) {
  for (const Shape& shape : kShapes) {
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
TEST(TileVisits, RunsAndWindowsChangeNothing) {
  const Shape shape{2, 2, 16, 128, 9 * kTile + 30, 2 * kTile, 4, 2};
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

// More query tiles than a block of a GPU lists at a time.
TEST(TileVisits, ManyQueryTilesVisitATile) {
  const Shape shape{1, 1, 16, 128, 600 * kTile, 0, 1, 1};
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
  const Shape shape{1, 2, 16, 128, 6 * kTile, 0, 4, 1};
  Machine machine;
  ScoreTilesArgs args = shape.call(machine);
  BFloat16* keys = args.kv.block(2) + args.kv.shape.k_offset(0);
  std::fill_n(keys, kTile * shape.head_dim, BFloat16(std::nanf("")));
  std::vector<int32_t> words(6, 0x3F & ~(1 << 2));
  args.visits = {.bits = machine.tensor(words, {1, 1, 6, 1})};
  score(machine, args);
  for (const float record : values_of<float>(args.records)) EXPECT_FALSE(std::isnan(record));
}

TEST(TileVisitsContract, NamesTheRuleThatIsBroken) {
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
