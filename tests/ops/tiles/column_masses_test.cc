// What columns take off the masses of tiles: tile_masses and subtract_columns against the
// double-precision reference and select_tiles over records, and on a text with a planted key.
//
// Reveals: columns whose mass is counted twice or for rows before them, masses of other lists,
// a select_tiles that sees something else than the records it stands for.
#include <gtest/gtest.h>

#include "ops/reference/tile_columns.h"
#include "ops/tiles/scored_text.h"

namespace sluice::testing {
namespace {

// ---- Masses ------------------------------------------------------------------------------------

SelectTilesArgs select_args(Machine& machine, const Scored& scored, const TileRule& rule,
                            int64_t num_tokens) {
  const int64_t num_lists = scored.masses.masses.dim(0);
  const int64_t num_q_tiles = scored.masses.masses.dim(1);
  return {.records = scored.tiles.records,
          .probes_per_tile = scored.tiles.probes.rows_per_tile,
          .batch = scored.tiles.batch,
          .rows = scored.tiles.rows,
          .prompt_end = num_tokens,
          .rule = rule,
          .mask = {.bits = machine.tensor(DType::kI32, {1, num_lists, num_q_tiles, 1}),
                   .first_q_tile = kFirst / kTile},
          .counts = machine.tensor(std::vector<int64_t>{0, 0, 0}, {3})};
}

std::vector<int32_t> words_of(Machine& machine, const SelectTilesArgs& args) {
  select_tiles(machine.stream(), args);
  machine.synchronize();
  return values_of<int32_t>(args.mask.bits);
}

TEST(TileMasses, SelectTheTilesThatRecordsSelect) {
  const TileRule rules[] = {
      {.share = kMassOne / 10 * 6, .recent_tokens = 0, .tail_tokens = 0},
      {.choice = TileChoice::kTop, .top_tiles = 2, .tail_tokens = 0, .max_tiles = 3},
      {.choice = TileChoice::kAlpha, .share = kMassOne / 3, .tail_tokens = 100}};
  for (const TileRule& rule : rules) {
    for (const int32_t num_lists : {1, 2}) {
      Machine machine;
      const PlantedText text = PlantedText::random(9 * kTile + 20, 12, 2, 2);
      const Scored scored = score(machine, text, num_lists);
      const SelectTilesArgs from_records = select_args(machine, scored, rule, text.num_tokens());
      SelectTilesArgs from_masses = select_args(machine, scored, rule, text.num_tokens());
      from_masses.masses = scored.masses;
      from_masses.records = {};
      EXPECT_EQ(words_of(machine, from_masses), words_of(machine, from_records));
      EXPECT_EQ(values_of<int64_t>(from_masses.counts), values_of<int64_t>(from_records.counts));
    }
  }
}

// Columns of the text's own choice, gathered.
TileColumns columns_of(Machine& machine, const Scored& scored, int32_t max_count) {
  const int64_t num_lists = scored.scores.dim(0);
  const int64_t num_segments = scored.scores.dim(1);
  TileColumns columns = new_columns(machine, num_lists, kFirst / kSegment, num_segments);
  columns.kv = machine.tensor(DType::kBF16, {num_segments, scored.tiles.kv.shape.num_kv_heads, 2,
                                             kTile, scored.tiles.kv.shape.head_dim});
  const std::vector<int32_t> counts(static_cast<size_t>(num_lists), max_count);
  select_columns(machine.stream(), {.scores = scored.scores,
                                    .max_count = machine.tensor(counts, {num_lists}),
                                    .batch = scored.tiles.batch,
                                    .first_segment = columns.first_segment,
                                    .rule = {.sink_tokens = 0, .to_segment_end = true},
                                    .columns = columns});
  gather_columns(machine.stream(), {.columns = columns,
                                    .first_segment = columns.first_segment,
                                    .num_segments = static_cast<int32_t>(num_segments),
                                    .kv = scored.tiles.kv,
                                    .kv_begin = scored.tiles.kv_begin,
                                    .kv_end = scored.tiles.kv_end,
                                    .block_table = scored.tiles.block_table});
  machine.synchronize();
  return columns;
}

void subtract(Machine& machine, const Scored& scored, const TileColumns& columns,
              CpuIsa isa = best_kernels()) {
  const OpsUnderTest ops(machine, isa);
  ops->subtract_columns(machine.stream(), {.vectors = scored.tiles.vectors,
                                           .rows_per_tile = scored.tiles.probes.rows_per_tile,
                                           .batch = scored.tiles.batch,
                                           .rows = scored.tiles.rows,
                                           .scale = scored.tiles.scale,
                                           .columns = columns,
                                           .masses = scored.masses});
  machine.synchronize();
}

void expect_subtraction(const PlantedText& text) {
  for (const int32_t num_lists : {1, 2}) {
    Machine machine;
    const Scored scored = score(machine, text, num_lists);
    const TileColumns columns = columns_of(machine, scored, 20);
    std::vector<double> expected;
    for (const int32_t mass : values_of<int32_t>(scored.masses.masses)) expected.push_back(mass);
    std::vector<double> column_mass;
    const int64_t num_kv_tiles = scored.masses.masses.dim(2);
    const int64_t num_segments = columns.count.dim(1);
    for (int32_t list = 0; list < num_lists; ++list) {
      for (int32_t entry = 0; entry < scored.masses.masses.dim(1); ++entry) {
        const int64_t lists = list * num_segments + entry * kTile / kSegment;
        const std::vector<double> of_columns = reference::column_masses(
            scored.tiles, num_lists, list, kFirst / kTile + static_cast<int32_t>(entry));
        double sum = 0.0;
        ASSERT_EQ(columns.count.data<int32_t>()[lists], 20);
        for (int32_t i = 0; i < 20; ++i) {
          const int32_t position = columns.positions.data<int32_t>()[lists * kTile + i];
          const double mass = of_columns[static_cast<size_t>(position)];
          sum += mass * kMassOne;
          const int64_t tile =
              (list * scored.masses.masses.dim(1) + entry) * num_kv_tiles + position / kTile;
          double& of_tile = expected[static_cast<size_t>(tile)];
          of_tile = std::max(0.0, of_tile - mass * kMassOne);
        }
        column_mass.push_back(sum);
      }
    }
    subtract(machine, scored, columns);
    // The exponential of scores with an error below 1e-5, of masses of at most 1; more for wide
    // heads.
    const double tolerance = 2e-5 * std::max(1, text.head_dim() / 32) * kMassOne;
    const std::vector<int32_t> masses = values_of<int32_t>(scored.masses.masses);
    for (size_t i = 0; i < masses.size(); ++i) {
      ASSERT_NEAR(masses[i], expected[i], tolerance) << "mass " << i;
    }
    for (size_t i = 0; i < column_mass.size(); ++i) {
      ASSERT_NEAR(scored.masses.column_mass.data<int32_t>()[i], column_mass[i], tolerance);
      EXPECT_GT(column_mass[i], 0.02 * kMassOne);
    }
  }
}

TEST(SubtractColumns, MatchesTheReference) {
  expect_subtraction(PlantedText::random(5 * kTile + 30, 21, 2, 2));
}

// Heads wider than a step of a product, and more probes of a query tile than one product takes.
TEST(SubtractColumns, MatchesTheReferenceForAllShapes) {
  expect_subtraction(PlantedText::random(4 * kTile, 21, 2, 4, 128));
  expect_subtraction(PlantedText::random(3 * kTile + 9, 21, 2, 1, 80));
  expect_subtraction(PlantedText::random(3 * kTile, 21, 2, 40));
}

TEST(SubtractColumns, ThreadsAndIsasChangeNothing) {
  Machine machine;
  const PlantedText text = PlantedText::random(5 * kTile + 30, 22, 2, 2);
  const Scored first = score(machine, text, 2);
  const TileColumns columns = columns_of(machine, first, 50);
  subtract(machine, first, columns);
  for (const CpuIsa isa : runnable_isas()) {
    const Scored again = score(machine, text, 2);
    subtract(machine, again, columns, isa);
    EXPECT_EQ(bytes_of(again.masses.masses), bytes_of(first.masses.masses));
    EXPECT_EQ(bytes_of(again.masses.column_mass), bytes_of(first.masses.column_mass));
  }
}

// One key that every row looks at, in a tile that holds nothing else: it becomes the column of
// every segment after it, and its tile is not taken any more.
TEST(Columns, HoldAPlantedVertical) {
  constexpr int32_t kVertical = kTile + 77;
  const auto queries = [](int32_t, int32_t) {
    std::vector<float> numbers(PlantedText::kHeadDim);
    numbers[0] = 10.0f;
    return numbers;
  };
  const auto keys = [](int32_t position, int32_t) {
    std::vector<float> numbers(PlantedText::kHeadDim);
    // Scores 10 and 0: of about 1000 keys the vertical holds 95 %.
    numbers[0] = position == kVertical ? 4.0f : 0.0f;
    return numbers;
  };
  Machine machine;
  const PlantedText text(8 * kTile, queries, keys, 1, 2);
  const Scored scored = score(machine, text, 1);
  const TileColumns columns = columns_of(machine, scored, 1);
  for (int32_t segment = 0; segment < 3; ++segment) {
    EXPECT_EQ(columns.count.data<int32_t>()[segment], 1);
    EXPECT_EQ(columns.positions.data<int32_t>()[segment * kTile], kVertical);
  }
  const TileRule rule{.share = kMassOne / 10 * 9, .recent_tokens = 0, .tail_tokens = 0};
  SelectTilesArgs args = select_args(machine, scored, rule, text.num_tokens() + kTile);
  // Query tiles 2 to 7: the vertical's tile, the sink and the diagonal.
  EXPECT_EQ(words_of(machine, args), (std::vector<int32_t>{7, 11, 19, 35, 67, 131}));
  subtract(machine, scored, columns);
  args.masses = scored.masses;
  EXPECT_EQ(words_of(machine, args), (std::vector<int32_t>{5, 9, 17, 33, 65, 129}));
}

}  // namespace
}  // namespace sluice::testing
