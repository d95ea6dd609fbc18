// Verticals and tile diagonals: score_lines against the double-precision reference, and on texts
// with planted slashes.
//
// Reveals: rows of the wrong segment or head, offsets rounded to the wrong diagonal, runs that do
// not add up.
#include "ops/tiles/tile_lines.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "ops/reference/tile_columns.h"
#include "ops/tiles/scored_text.h"

namespace sluice::testing {
namespace {

constexpr int32_t kLineRows = 20;

struct Lines {
  ScoreTilesArgs tiles;  // what the reference takes
  ScoreLinesArgs args;
};

// score_line_rows over all keys, and the arguments of score_lines.
Lines score_rows(Machine& machine, const PlantedText& text, int64_t num_lists,
                 CpuIsa isa = best_kernels(), int32_t line_rows = kLineRows) {
  const ScoreTilesArgs tiles = text.call(machine, {}, kFirst);
  const LineRows lines{.segment_tokens = kSegment, .count = line_rows};
  const int64_t num_segments = (text.num_tokens() - kFirst + kSegment - 1) / kSegment;
  const int64_t num_probes = num_segments * line_rows;
  const int64_t num_tiles = tiles_of(text.num_tokens());
  const ScoreLinesArgs args{
      .vectors = machine.tensor(DType::kBF16, {text.num_q_heads(), num_probes, text.head_dim()}),
      .records = machine.tensor(DType::kF32, {text.num_q_heads(), num_probes, num_tiles}),
      .lse = machine.tensor(DType::kF32, {text.num_q_heads(), num_probes}),
      .batch = tiles.batch,
      .rows = tiles.rows,
      .scale = tiles.scale,
      .kv = tiles.kv,
      .kv_begin = tiles.kv_begin,
      .kv_end = tiles.kv_end,
      .block_table = tiles.block_table,
      .lines = lines,
      .verticals = machine.tensor(DType::kI32, {num_lists, num_segments, num_tiles * kTile}),
      .diagonals = machine.tensor(DType::kI64, {num_lists, num_segments, num_tiles})};
  OpsUnderTest(machine, isa)
      ->score_line_rows(machine.stream(), {.q = tiles.q,
                                           .batch = tiles.batch,
                                           .rows = tiles.rows,
                                           .scale = tiles.scale,
                                           .kv = tiles.kv,
                                           .kv_begin = tiles.kv_begin,
                                           .kv_end = tiles.kv_end,
                                           .block_table = tiles.block_table,
                                           .lines = lines,
                                           .vectors = args.vectors,
                                           .records = args.records});
  return {.tiles = tiles, .args = args};
}

Lines score_all(Machine& machine, const PlantedText& text, int64_t num_lists,
                CpuIsa isa = best_kernels(), int32_t line_rows = kLineRows) {
  const Lines lines = score_rows(machine, text, num_lists, isa, line_rows);
  OpsUnderTest(machine, isa)->score_lines(machine.stream(), lines.args);
  machine.synchronize();
  return lines;
}

void expect_lines(int32_t head_dim, int32_t group) {
  for (const int32_t num_lists : {1, 2}) {
    // The last segment is whole, has fewer rows than line rows, or ends inside a tile.
    for (const int32_t num_tokens : {3 * kSegment, 2 * kSegment + 7, 3 * kSegment - 100}) {
      Machine machine;
      const PlantedText text = PlantedText::random(num_tokens, 31, 2, group, head_dim);
      const Lines lines = score_all(machine, text, num_lists);
      const reference::LineScores expected =
          reference::line_scores(lines.tiles, kSegment, kLineRows, num_lists);
      // Of each probe: rounding down, and the exponential of a score with an error below 1e-5, more
      // for wide heads.
      const double rounding = double(text.num_q_heads()) * kLineRows / kColumnOne;
      const double relative = 2e-5 * std::max(1, head_dim / 32);
      const int64_t width = lines.args.verticals.dim(2);
      for (int64_t i = 0; i < lines.args.verticals.num_elements(); ++i) {
        const double wanted =
            i % width < num_tokens
                ? expected.verticals[static_cast<size_t>(i / width * num_tokens + i % width)]
                : 0.0;
        ASSERT_NEAR(lines.args.verticals.data<int32_t>()[i] / double{kColumnOne}, wanted,
                    rounding + relative * wanted)
            << "vertical " << i;
      }
      for (size_t i = 0; i < expected.diagonals.size(); ++i) {
        const double actual = static_cast<double>(lines.args.diagonals.data<int64_t>()[i]) / kTile;
        ASSERT_NEAR(actual / kColumnOne, expected.diagonals[i],
                    rounding * kTile + relative * expected.diagonals[i])
            << "diagonal " << i;
      }
    }
  }
}

TEST(ScoreLines, MatchesTheReference) { expect_lines(PlantedText::kHeadDim, 2); }

// Heads wider than a step of a product, and more line rows than one product takes.
TEST(ScoreLines, MatchesTheReferenceForAllShapes) {
  expect_lines(128, 1);
  expect_lines(80, 7);
}

TEST(ScoreLines, RunsThreadsAndIsasChangeNothing) {
  Machine machine;
  const PlantedText text = PlantedText::random(3 * kSegment - 30, 32, 2, 2);
  const Lines whole = score_all(machine, text, 2);
  const auto expect_same = [&](const Lines& lines) {
    EXPECT_EQ(bytes_of(lines.args.verticals), bytes_of(whole.args.verticals));
    EXPECT_EQ(bytes_of(lines.args.diagonals), bytes_of(whole.args.diagonals));
  };
  for (const CpuIsa isa : runnable_isas()) expect_same(score_all(machine, text, 2, isa));
  Machine team(4);
  expect_same(score_all(team, text, 2));
  Lines parts = score_rows(machine, text, 2);
  ScoreLinesArgs run = parts.args;
  for (const int32_t begin : {0, kTile, 4 * kTile}) {
    const int32_t ends[] = {kTile, 4 * kTile, text.num_tokens()};
    run.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
    run.kv_end = machine.tensor(std::vector<int32_t>{ends[(begin + kTile) / (2 * kTile)]}, {1});
    run.block_table = TensorView(parts.args.block_table.bytes() + begin / 64 * 4, DType::kI32,
                                 {1, parts.args.block_table.dim(1) - begin / 64});
    score_lines(machine.stream(), run);
  }
  machine.synchronize();
  expect_same(parts);
}

// Rows whose key at one offset stands out: its mass is shared by the two diagonals beside it, by
// distance. At 127 and 129 nearly all of it belongs to diagonal 1.
TEST(ScoreLines, SharesASlashBetweenItsTwoDiagonals) {
  constexpr int32_t kSegments = 5, kTiles = 10;
  for (const int32_t offset : {0, 127, 128, 129, 192, 500, 1000}) {
    // Row x asks for number x of a list of directions, key j answers to row j + offset.
    const auto direction = [](int32_t number) {
      std::mt19937 generator(static_cast<uint32_t>(number));
      std::vector<float> numbers(PlantedText::kHeadDim);
      for (float& value : numbers) value = generator() % 2 == 0 ? 3.0f : -3.0f;
      return numbers;
    };
    Machine machine;
    const PlantedText text(
        kSegments * kSegment, [&](int32_t position, int32_t) { return direction(position); },
        [&](int32_t position, int32_t) { return direction(position + offset); });
    const Lines lines = score_all(machine, text, 1, best_kernels(), 64);
    const std::vector<int64_t> sums = values_of<int64_t>(lines.args.diagonals);
    const size_t last = (kSegments - 2) * kTiles;  // of the last segment; rows begin at segment 1
    const auto near = static_cast<size_t>(offset / kTile);
    const double whole = 64.0 * kColumnOne * kTile;
    EXPECT_NEAR(static_cast<double>(sums[last + near]) / whole, 1.0 - offset % kTile / 128.0, 0.02)
        << offset;
    EXPECT_NEAR(static_cast<double>(sums[last + near + 1]) / whole, offset % kTile / 128.0, 0.02)
        << offset;
  }
}

// Only heads of kLines count, by segment; totals are the sums before anything ends.
TEST(ScoreLines, SumsTheHeadsOfItsPattern) {
  constexpr auto kLines = static_cast<int32_t>(HeadPattern::kLines);
  constexpr auto kTiles = static_cast<int32_t>(HeadPattern::kTiles);
  const std::vector<int32_t> patterns = {kLines, kTiles,   // head 0 in two segments
                                         kTiles, kTiles,   // 1
                                         kLines, kLines,   // 2
                                         kTiles, kLines};  // 3
  Machine machine;
  const PlantedText text = PlantedText::random(3 * kSegment - 100, 33, 2, 2);
  Lines lines = score_rows(machine, text, 2);
  lines.args.patterns = machine.tensor(patterns, {4, 2});
  lines.args.totals = machine.tensor(DType::kI64, {2, 2});
  score_lines(machine.stream(), lines.args);
  machine.synchronize();
  // One list for each head.
  const reference::LineScores of_heads =
      reference::line_scores(lines.tiles, kSegment, kLineRows, 4);
  const auto expected = [&](const std::vector<double>& sums, size_t row, int64_t width, int64_t i) {
    double sum = 0.0;
    for (const size_t head : {row / 2 * 2, row / 2 * 2 + 1}) {
      const size_t of_head = head * 2 + row % 2;
      if (patterns[of_head] == kLines)
        sum += sums[of_head * static_cast<size_t>(width) + static_cast<size_t>(i)];
    }
    return sum;
  };
  for (size_t row = 0; row < 4; ++row) {
    int64_t total = 0;
    const int64_t width = lines.args.verticals.dim(2);
    const int32_t* verticals =
        lines.args.verticals.data<int32_t>() + static_cast<int64_t>(row) * width;
    for (int64_t j = 0; j < width; ++j) {
      total += verticals[j];
      const double wanted =
          j < text.num_tokens() ? expected(of_heads.verticals, row, text.num_tokens(), j) : 0.0;
      ASSERT_NEAR(verticals[j] / double{kColumnOne}, wanted, 1e-5 + 2e-5 * wanted)
          << "row " << row << ", vertical " << j;
    }
    EXPECT_EQ(values_of<int64_t>(lines.args.totals)[row], total) << row;
    const int64_t num_diagonals = lines.args.diagonals.dim(2);
    const int64_t* diagonals =
        lines.args.diagonals.data<int64_t>() + static_cast<int64_t>(row) * num_diagonals;
    for (int64_t d = 0; d < num_diagonals; ++d) {
      const double wanted = expected(of_heads.diagonals, row, num_diagonals, d);
      ASSERT_NEAR(static_cast<double>(diagonals[d]) / kTile / kColumnOne, wanted,
                  1e-3 + 2e-5 * wanted)
          << "row " << row << ", diagonal " << d;
    }
  }
}

TEST(LinesContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  Lines lines = score_rows(machine, PlantedText::random(3 * kSegment, 1), 1);
  lines.args.lines.count = 200;
  EXPECT_DEATH(score_lines(machine.stream(), lines.args), "lines.count must be 1 to");
  lines.args.lines = {.segment_tokens = 100};
  EXPECT_DEATH(score_lines(machine.stream(), lines.args), "lines.segment_tokens must be a mul");
}

}  // namespace
}  // namespace sluice::testing
