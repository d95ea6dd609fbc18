// The ops that choose and copy columns: against the double-precision reference, the definition of
// the choice, and copies made by the test.
//
// Reveals: probes of the wrong segment, keys from the future, ties by chance, sums that overflow,
// runs and windows that do not add up.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "ops/attention_problem.h"
#include "ops/reference/tile_columns.h"
#include "ops/tiles/scored_text.h"
#include "ops/tiles/tile_columns.h"
#include "sluice/error.h"

namespace sluice::testing {
namespace {

// ---- score_columns -----------------------------------------------------------------------------

struct Shape {
  int32_t num_tokens;
  int32_t num_kv_heads = 2;
  int32_t group = 3;
  int32_t head_dim = PlantedText::kHeadDim;
};

// Segments that end inside a tile, then what kernels distinguish: heads wider than a step of a
// product, more probes of a segment than one product takes, and more segments than stay on a
// multiprocessor.
const Shape kShapes[] = {{4 * kTile},
                         {5 * kTile + 30},
                         {6 * kTile - 1},
                         {.num_tokens = 4 * kTile + 9, .group = 4, .head_dim = 128},
                         {.num_tokens = 4 * kTile, .group = 1, .head_dim = 80},
                         {.num_tokens = 3 * kTile + 1, .group = 2, .head_dim = 256},
                         {.num_tokens = 4 * kTile, .group = 70},
                         {.num_tokens = 6 * kTile + 77, .group = 7, .head_dim = 128},
                         {.num_tokens = 8 * kTile + 1, .group = 70, .head_dim = 64}};
// Heads for which GPUs have kernels of their own, and others.
const int32_t kHeadDims[] = {PlantedText::kHeadDim, 64, 128};

TEST(ScoreColumns, MatchesTheReference) {
  for (const int32_t num_lists : {1, 2}) {
    for (const Shape& shape : kShapes) {
      const int32_t num_tokens = shape.num_tokens;
      SCOPED_TRACE(fmt::format("{} lists, {} tokens, {} heads a list of {}", num_lists, num_tokens,
                               shape.group, shape.head_dim));
      Machine machine;
      const PlantedText text =
          PlantedText::random(num_tokens, 3, shape.num_kv_heads, shape.group, shape.head_dim);
      const Scored scored = score(machine, text, num_lists);
      const std::vector<double> expected =
          reference::column_scores(scored.tiles, kSegment, num_lists);
      const int64_t num_lists_and_segments = num_lists * scored.scores.dim(1);
      const int64_t width = scored.scores.dim(2);
      // Of a probe: rounding down, and the exponential of a score and an lse of about 20 terms
      // whose errors are below 1e-5, more for wide heads.
      const double num_probes = 2.0 * text.num_q_heads() / num_lists;
      const double relative = 2e-5 * std::max(1, shape.head_dim / 32);
      double largest = 0.0;
      for (int64_t row = 0; row < num_lists_and_segments; ++row) {
        for (int32_t j = 0; j < width; ++j) {
          const double actual = scored.scores.data<int32_t>()[row * width + j];
          const double wanted =
              j < num_tokens ? expected[static_cast<size_t>(row * num_tokens + j)] : 0.0;
          ASSERT_NEAR(actual / kColumnOne, wanted, num_probes / kColumnOne + relative * wanted)
              << "row " << row << " position " << j;
          largest = std::max(largest, wanted);
        }
      }
      EXPECT_GT(largest, 0.05) << "random keys are not all alike";
    }
  }
}

// Runs of two tiles, in any order, over blocks of another size.
void expect_runs_change_nothing(Machine& machine, const PlantedText& text, const Scored& whole) {
  for (const int32_t block_tokens : {64, 256}) {
    const ScoreTilesArgs all = text.call(machine, {.rows_per_tile = 4}, kFirst, block_tokens);
    ScoreColumnsArgs run =
        score_args(whole.tiles, whole.masses,
                   machine.tensor(DType::kI32, {2, whole.scores.dim(1), whole.scores.dim(2)}));
    run.kv = all.kv;
    for (const int32_t begin : {2 * kTile, 0, 4 * kTile, 6 * kTile}) {
      const int32_t end = std::min(begin + 2 * kTile, text.num_tokens());
      run.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
      run.kv_end = machine.tensor(std::vector<int32_t>{end}, {1});
      const int64_t first = begin / block_tokens;
      run.block_table = TensorView(all.block_table.bytes() + first * 4, DType::kI32,
                                   {1, all.block_table.dim(1) - first});
      score_columns(machine.stream(), run);
    }
    machine.synchronize();
    EXPECT_EQ(bytes_of(run.scores), bytes_of(whole.scores)) << block_tokens;
  }
}

TEST(ScoreColumns, RunsThreadsAndIsasChangeNothing) {
  for (const int32_t head_dim : kHeadDims) {
    SCOPED_TRACE(head_dim);
    Machine machine;
    const PlantedText text = PlantedText::random(6 * kTile + 3, 8, 2, 2, head_dim);
    const Scored whole = score(machine, text, 2);
    for (const CpuIsa isa : runnable_isas()) {
      EXPECT_EQ(bytes_of(score(machine, text, 2, isa).scores), bytes_of(whole.scores));
    }
    Machine team(4);
    EXPECT_EQ(bytes_of(score(team, text, 2).scores), bytes_of(whole.scores));
    expect_runs_change_nothing(machine, text, whole);
  }
}

// Rows [kSegment, 2 kSegment) of the call alone give the second segment.
TEST(ScoreColumns, WindowsChangeNothing) {
  for (const int32_t head_dim : kHeadDims) {
    SCOPED_TRACE(head_dim);
    Machine machine;
    const PlantedText text = PlantedText::random(6 * kTile, 9, 1, 2, head_dim);
    const Scored whole = score(machine, text, 1);
    ScoreTilesArgs part = whole.tiles;
    part.rows = {.first = kSegment, .count = kSegment};
    const int64_t num_probes = int64_t{kSegment / kTile} * 4;
    part.vectors = machine.tensor(DType::kBF16, {2, num_probes, head_dim});
    part.records = machine.tensor(DType::kF32, {2, num_probes, whole.tiles.records.dim(2)});
    score_tiles(machine.stream(), part);
    const TileMasses masses = new_masses(machine, part, 1);
    make_masses(machine, part, masses);
    const TensorView scores = machine.tensor(DType::kI32, {1, 1, whole.scores.dim(2)});
    score_columns(machine.stream(), score_args(part, masses, scores));
    machine.synchronize();
    const std::vector<int32_t> expected = values_of<int32_t>(whole.scores);
    EXPECT_EQ(values_of<int32_t>(scores),
              std::vector<int32_t>(expected.begin() + scores.num_elements(), expected.end()));
    const std::vector<int32_t> all_masses = values_of<int32_t>(whole.masses.masses);
    EXPECT_EQ(
        values_of<int32_t>(masses.masses),
        std::vector<int32_t>(all_masses.end() - masses.masses.num_elements(), all_masses.end()));
  }
}

// 16 query tiles of 16 heads that look at key 5 alone: 2^32 in units of 2^-24.
TEST(ScoreColumns, SumsEndAtTheLargestScore) {
  for (const int32_t head_dim : kHeadDims) {
    SCOPED_TRACE(head_dim);
    Machine machine;
    const auto queries = [head_dim](int32_t, int32_t) {
      std::vector<float> numbers(static_cast<size_t>(head_dim));
      numbers[0] = 100.0f;
      return numbers;
    };
    const auto keys = [head_dim](int32_t position, int32_t) {
      std::vector<float> numbers(static_cast<size_t>(head_dim));
      numbers[0] = position == 5 ? 4.0f : 0.0f;
      return numbers;
    };
    const PlantedText text(kFirst + 16 * kTile, queries, keys, 1, 16);
    ScoreTilesArgs tiles = text.call(machine, {.rows_per_tile = 1}, kFirst);
    score_tiles(machine.stream(), tiles);
    const TileMasses masses = new_masses(machine, tiles, 1);
    make_masses(machine, tiles, masses);
    ScoreColumnsArgs args = score_args(
        tiles, masses, machine.tensor(DType::kI32, {1, 1, tiles_of(text.num_tokens()) * kTile}));
    args.segment_tokens = 18 * kTile;  // all rows
    score_columns(machine.stream(), args);
    machine.synchronize();
    EXPECT_EQ(args.scores.data<int32_t>()[5], static_cast<int32_t>(kMaxColumnScore));
    EXPECT_EQ(args.scores.data<int32_t>()[6], 0);
  }
}

// ---- select_columns ----------------------------------------------------------------------------

constexpr int32_t kNumTokens = 4 * kSegment + 10;

// Scores with many ties and zeros, of 2 lists and segments 1 to 4.
std::vector<int32_t> tied_scores(int64_t width) {
  std::mt19937 generator(4);
  std::vector<int32_t> scores(static_cast<size_t>(2 * 4 * width));
  for (int32_t& number : scores) {
    number = std::max(0, static_cast<int32_t>(generator() % 40) - 20);
  }
  return scores;
}

// The definition: candidates by falling score and rising position, the first of them, sorted.
std::vector<int32_t> chosen(const int32_t* scores, const ColumnRule& rule, int32_t segment,
                            int32_t max_count) {
  const int32_t begin = segment * kSegment;
  const int32_t end = std::min(begin + kSegment, kNumTokens);
  if (begin < rule.threshold_tokens) return {};
  std::vector<int32_t> positions;
  for (int32_t j = rule.sink_tokens; j < (rule.to_segment_end ? end : begin - rule.recent_tokens);
       ++j) {
    if (scores[j] > 0) positions.push_back(j);
  }
  std::stable_sort(positions.begin(), positions.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  if (rule.key_share > 0) {
    const double most = std::ceil(static_cast<double>(rule.key_share) / kMassOne * end);
    max_count = std::min(max_count, static_cast<int32_t>(most));
  }
  if (std::ssize(positions) > max_count) positions.resize(static_cast<size_t>(max_count));
  std::sort(positions.begin(), positions.end());
  return positions;
}

TEST(SelectColumns, TakesTheLargestScores) {
  const ColumnRule rules[] = {{},
                              {.sink_tokens = 0, .recent_tokens = 0},
                              {.to_segment_end = true},
                              {.to_segment_end = true, .key_share = kMassOne / 100},
                              {.key_share = kMassOne / 2},
                              {.sink_tokens = 3, .threshold_tokens = 2 * kSegment + 1}};
  for (const ColumnRule& rule : rules) {
    Machine machine;
    const int64_t width = tiles_of(kNumTokens) * kTile;
    const std::vector<int32_t> scores = tied_scores(width);
    const TileColumns columns = new_columns(machine, 2, 0, 6);
    std::memset(columns.count.bytes(), 0x11, columns.count.num_bytes());
    const SelectColumnsArgs args{
        .scores = machine.tensor(scores, {2, 4, width}),
        .max_count = machine.tensor(std::vector<int32_t>{kTile, 17}, {2}),
        .batch = {.row_begin =
                      machine.tensor(std::vector<int32_t>{7, 7 + kNumTokens - kFirst}, {2}),
                  .first_pos = machine.tensor(std::vector<int32_t>{kFirst}, {1})},
        .first_segment = 1,
        .rule = rule,
        .columns = columns};
    select_columns(machine.stream(), args);
    machine.synchronize();
    for (int32_t list = 0; list < 2; ++list) {
      EXPECT_EQ(columns.count.data<int32_t>()[list * 6], 0x11111111) << "not of the scores";
      for (int32_t segment = 1; segment <= 4; ++segment) {
        const std::vector<int32_t> expected =
            chosen(scores.data() + (list * 4 + segment - 1) * width, rule, segment,
                   list == 0 ? kTile : 17);
        const int32_t entry = list * 6 + segment;
        const int32_t* positions = columns.positions.data<int32_t>() + entry * kTile;
        EXPECT_EQ(std::vector<int32_t>(positions, positions + columns.count.data<int32_t>()[entry]),
                  expected)
            << "list " << list << " segment " << segment;
      }
    }
  }
}

// With totals: the fewest of those positions that leave the others no more than the rest of a
// share.
TEST(SelectColumns, TakesAShareOfTheScores) {
  const ColumnRule rules[] = {{.to_segment_end = true}, {.sink_tokens = 0, .recent_tokens = 0}};
  for (const uint32_t share : {kMassOne / 10 * 3, kMassOne / 10 * 9, kMassOne}) {
    for (const ColumnRule& rule : rules) {
      Machine machine;
      const int64_t width = tiles_of(kNumTokens) * kTile;
      const std::vector<int32_t> scores = tied_scores(width);
      std::vector<int64_t> totals;
      for (auto at = scores.begin(); at != scores.end(); at += width) {
        totals.push_back(std::accumulate(at, at + width, int64_t{0}));
      }
      const TileColumns columns{.positions = machine.tensor(DType::kI32, {2, 4, 5 * kTile}),
                                .count = machine.tensor(DType::kI32, {2, 4}),
                                .segment_tokens = kSegment,
                                .first_segment = 1};
      select_columns(machine.stream(),
                     {.scores = machine.tensor(scores, {2, 4, width}),
                      .max_count = machine.tensor(std::vector<int32_t>{5 * kTile, 70}, {2}),
                      .batch = {.row_begin = machine.tensor(
                                    std::vector<int32_t>{7, 7 + kNumTokens - kFirst}, {2}),
                                .first_pos = machine.tensor(std::vector<int32_t>{kFirst}, {1})},
                      .first_segment = 1,
                      .rule = rule,
                      .columns = columns,
                      .totals = machine.tensor(totals, {2, 4}),
                      .share = share});
      machine.synchronize();
      for (int32_t row = 0; row < 8; ++row) {
        const int32_t* own = scores.data() + row * width;
        const int32_t segment = row % 4 + 1;
        const auto left_by = [&](int32_t count) {
          int64_t left = 0;
          for (const int32_t j : chosen(own, rule, segment, kNumTokens)) left += own[j];
          for (const int32_t j : chosen(own, rule, segment, count)) left -= own[j];
          return static_cast<double>(left);
        };
        const double allowed =
            static_cast<double>(totals[static_cast<size_t>(row)]) * (kMassOne - share) / kMassOne;
        int32_t count = 0;
        while (count < (row < 4 ? 5 * kTile : 70) && left_by(count) > allowed) ++count;
        const int32_t* positions = columns.positions.data<int32_t>() + row * 5 * kTile;
        EXPECT_EQ(std::vector<int32_t>(positions, positions + columns.count.data<int32_t>()[row]),
                  chosen(own, rule, segment, count))
            << "row " << row << " share " << share;
      }
    }
  }
}

// ---- gather_columns ----------------------------------------------------------------------------

TEST(GatherColumns, CopiesWhatTheTestCopies) {
  const AttentionProblem problem({.head_dim = 48,
                                  .num_kv_heads = 2,
                                  .seqs = {{.num_rows = 500, .first_pos = 512}},
                                  .seed = 3});
  for (const bool shared : {false, true}) {
    AttentionRun run{.block_tokens = 64, .one_list_for_all_heads = shared};
    run.segment_tokens = kSegment;
    run.columns_of = [](int32_t head, int32_t segment) {
      std::vector<int32_t> positions = half_of_pages(256 * segment, 7u + 3u * head);
      if (segment == 3) positions.clear();
      return positions;
    };
    Machine machine;
    const AttentionArgs whole = problem.call(machine, run, 0, 1012);
    const TileColumns expected = masked_in(whole.selection)->columns;
    TileColumns columns = expected;
    columns.kv = machine.tensor(DType::kBF16, {2, 2, 2, expected.kv.dim(3), 48});
    for (const int32_t begin : {640, 0}) {  // in any order
      const AttentionArgs part = problem.call(machine, run, begin, begin == 0 ? 640 : 1012);
      gather_columns(machine.stream(), {.columns = columns,
                                        .first_segment = 2,
                                        .num_segments = 2,
                                        .kv = part.kv,
                                        .kv_begin = part.kv_begin,
                                        .kv_end = part.kv_end,
                                        .block_table = part.block_table});
    }
    machine.synchronize();
    EXPECT_EQ(bytes_of(columns.kv), bytes_of(expected.kv)) << shared;
  }
}

TEST(ColumnsContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  const PlantedText text = PlantedText::random(4 * kTile, 2);
  const Scored scored = score(machine, text, 1);
  ScoreColumnsArgs args = score_args(scored.tiles, scored.masses, scored.scores);
  args.segment_tokens = 100;
  EXPECT_DEATH(score_columns(machine.stream(), args), "segment_tokens must be a multiple");
  args.segment_tokens = kTile;
  EXPECT_DEATH(score_columns(machine.stream(), args), "a segment for all rows");
  const TileColumns columns = new_columns(machine, 1, 0, 2);
  EXPECT_DEATH(gather_columns(machine.stream(), {.columns = columns}), "columns.kv is absent");
}

TEST(ColumnsContract, GpusNameWhatTheyDoNotSupport) {
  if (testing_cpu()) GTEST_SKIP() << "the CPU supports it";
  Machine machine;
  const PlantedText text = PlantedText::random(3 * kTile, 2, 1, 1, 20);
  const ScoreTilesArgs tiles = text.call(machine, {.rows_per_tile = 4}, kFirst);
  const ScoreColumnsArgs args = score_args(tiles, new_masses(machine, tiles, 1),
                                           machine.tensor(DType::kI32, {1, 1, 3 * kTile}));
  EXPECT_THROW(score_columns(machine.stream(), args), Error);
}

TEST(ColumnsContract, GpusReportKeysBeyondTheScores) {
  if (testing_cpu()) GTEST_SKIP() << "a check on the CPU";
  Machine machine;
  const Scored scored = score(machine, PlantedText::random(4 * kTile, 2), 1);
  ScoreColumnsArgs args = score_args(scored.tiles, scored.masses, scored.scores);
  args.scores = machine.tensor(DType::kI32, {1, 1, 3 * kTile});
  score_columns(machine.stream(), args);
  EXPECT_THROW(machine.synchronize(), Error);
}

}  // namespace
}  // namespace sluice::testing
