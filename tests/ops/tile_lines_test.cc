// Verticals and tile diagonals: score_lines against the double-precision reference, and
// select_diagonals against its definition; and on texts with planted slashes.
//
// Reveals: rows of the wrong segment, offsets rounded to the wrong diagonal, runs that do not add
// up, ties by chance.
#include "ops/tile_lines.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "ops/reference/tile_columns.h"
#include "scored_text.h"

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
  for (const int32_t offset : {0, 127, 128, 129, 192, 500}) {
    // Row x asks for number x of a list of directions, key j answers to row j + offset.
    const auto direction = [](int32_t number) {
      std::mt19937 generator(static_cast<uint32_t>(number));
      std::vector<float> numbers(PlantedText::kHeadDim);
      for (float& value : numbers) value = generator() % 2 == 0 ? 3.0f : -3.0f;
      return numbers;
    };
    Machine machine;
    const PlantedText text(
        3 * kSegment, [&](int32_t position, int32_t) { return direction(position); },
        [&](int32_t position, int32_t) { return direction(position + offset); });
    const Lines lines = score_all(machine, text, 1, best_kernels(), 64);
    const std::vector<int64_t> sums = values_of<int64_t>(lines.args.diagonals);
    const size_t last = 6;  // the diagonals of segment 2
    const auto near = static_cast<size_t>(offset / kTile);
    const double whole = 64.0 * kColumnOne * kTile;
    EXPECT_NEAR(static_cast<double>(sums[last + near]) / whole, 1.0 - offset % kTile / 128.0, 0.02)
        << offset;
    if (near + 1 < 6) {
      EXPECT_NEAR(static_cast<double>(sums[last + near + 1]) / whole, offset % kTile / 128.0, 0.02)
          << offset;
    }
  }
}

// ---- select_diagonals --------------------------------------------------------------------------

constexpr int32_t kNumTokens = 5 * kSegment + 40;  // segments 1 to 5, the last of one tile
constexpr int32_t kNumTiles = 11;

SelectDiagonalsArgs select_args(Machine& machine, const std::vector<int64_t>& sums) {
  const int32_t num_rows = kNumTokens - kFirst;
  return {.diagonals = machine.tensor(sums, {2, 5, kNumTiles}),
          .max_count = machine.tensor(std::vector<int32_t>{4, 6}, {2}),
          .segment_tokens = kSegment,
          .batch = {.row_begin = machine.tensor(std::vector<int32_t>{3, 3 + num_rows}, {2}),
                    .first_pos = machine.tensor(std::vector<int32_t>{kFirst}, {1})},
          .rows = {.first = 0, .count = num_rows},
          .prompt_end = kNumTokens + 500,
          .mask = {.bits = machine.tensor(DType::kI32, {1, 2, 10, 1}), .first_q_tile = 2},
          .counts = machine.tensor(std::vector<int64_t>{1, 2, 3}, {3})};
}

// Sums with ties and zeros; segment 3 of list 1 has none.
std::vector<int64_t> tied_sums() {
  std::mt19937 generator(6);
  std::vector<int64_t> sums;
  for (int32_t i = 0; i < 2 * 5 * kNumTiles; ++i) {
    const bool is_blank = i / kNumTiles == 5 + 2;
    sums.push_back(is_blank ? 0 : std::max<int64_t>(0, static_cast<int64_t>(generator() % 8) - 3));
  }
  return sums;
}

// The definition, bit by bit.
std::vector<int32_t> expected_words(const SelectDiagonalsArgs& args,
                                    const std::vector<int64_t>& sums) {
  std::vector<int32_t> words;
  for (int32_t list = 0; list < 2; ++list) {
    for (int32_t q_tile = 2; q_tile < 12; ++q_tile) {
      const int32_t segment = q_tile / 2 - 1;
      const auto first = sums.begin() + (list * 5 + std::min(segment, 4)) * kNumTiles;
      const std::vector<int64_t> of_segment(first, first + kNumTiles);
      std::vector<int32_t> order(kNumTiles);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin() + 2, order.end(), [&](int32_t a, int32_t b) {
        return of_segment[static_cast<size_t>(a)] > of_segment[static_cast<size_t>(b)];
      });
      const int64_t num_keys = std::min<int64_t>((segment + 2) * kSegment, kNumTokens);
      int64_t count = args.max_count.data<int32_t>()[list];
      if (args.rule.key_share > 0) {
        const double tokens =
            static_cast<double>(args.rule.key_share) / kMassOne * double(num_keys);
        count = std::min(count, static_cast<int64_t>(std::ceil(tokens / kTile)));
      }
      const bool is_blank = *std::max_element(of_segment.begin(), of_segment.end()) == 0;
      const QueryTile tile{.q_tile = q_tile, .prompt_end = args.prompt_end};
      uint32_t word = 0;
      for (int32_t j = 0; j <= q_tile; ++j) {
        const auto rank = std::find(order.begin(), order.end(), q_tile - j) - order.begin();
        const bool is_chosen =
            rank < 2 || (rank < count && of_segment[static_cast<size_t>(q_tile - j)] > 0);
        const bool all = is_blank || count >= std::min((segment + 2) * 2, kNumTiles) ||
                         attends_everything(args.rule, tile);
        if (all || is_chosen || is_forced(args.rule, tile, j)) word |= 1u << j;
      }
      words.push_back(q_tile <= 10 ? static_cast<int32_t>(word) : 0);
    }
  }
  return words;
}

constexpr TileRule kNothingForced{
    .choice = TileChoice::kTop, .sink_tokens = 0, .recent_tokens = 0, .tail_tokens = 0};

// Selects, and compares words and counts with the definition. Returns the words.
std::vector<int32_t> expect_defined(Machine& machine, const SelectDiagonalsArgs& args,
                                    const std::vector<int64_t>& sums) {
  select_diagonals(machine.stream(), args);
  machine.synchronize();
  const std::vector<int32_t> expected = expected_words(args, sums);
  // Query tile 11 has no rows, and its entry lies outside of `rows`.
  const std::vector<int32_t> words = values_of<int32_t>(args.mask.bits);
  int64_t num_set = 0;
  for (int32_t i = 0; i < 20; ++i) {
    if (i % 10 == 9) continue;
    EXPECT_EQ(words[static_cast<size_t>(i)], expected[static_cast<size_t>(i)]) << i;
    num_set += std::popcount(static_cast<uint32_t>(expected[static_cast<size_t>(i)]));
  }
  EXPECT_EQ(values_of<int64_t>(args.counts),
            (std::vector<int64_t>{1 + num_set, 2 + 2 * (3 + 11) * 9 / 2, 3}));
  return words;
}

TEST(SelectDiagonals, TakesTheLargestSums) {
  const std::vector<int64_t> sums = tied_sums();
  const TileRule rules[] = {
      kNothingForced,
      {.choice = TileChoice::kTop, .sink_tokens = 128, .recent_tokens = 300},
      {.choice = TileChoice::kTop, .threshold_tokens = 4 * kTile, .tail_tokens = 700}};
  for (const TileRule& rule : rules) {
    Machine machine;
    SelectDiagonalsArgs args = select_args(machine, sums);
    args.rule = rule;
    expect_defined(machine, args, sums);
  }
}

// Shares of the keys in place of numbers, and below them: another number in each segment.
TEST(SelectDiagonals, TakesAShareOfTheKeys) {
  const std::vector<int64_t> sums = tied_sums();
  for (const double share : {0.01, 0.3, 0.5, 1.0}) {
    for (const int32_t max_count : {4, 1 << 20}) {
      Machine machine;
      SelectDiagonalsArgs args = select_args(machine, sums);
      args.max_count = machine.tensor(std::vector<int32_t>{max_count, max_count}, {2});
      args.rule = kNothingForced;
      args.rule.key_share = static_cast<uint32_t>(share * kMassOne);
      const std::vector<int32_t> words = expect_defined(machine, args, sums);
      // The last query tile of segment 1 and that of segment 5, which sees most keys.
      if (share == 0.3 && max_count > 4) {
        EXPECT_EQ(std::popcount(static_cast<uint32_t>(words[1])), 2);
        EXPECT_EQ(std::popcount(static_cast<uint32_t>(words[8])), 4);
      }
    }
  }
}

// The rows in windows of whole segments, with the sums of these segments alone.
TEST(SelectDiagonals, WindowsChangeNothing) {
  Machine machine;
  const std::vector<int64_t> sums = tied_sums();
  const SelectDiagonalsArgs whole = select_args(machine, sums);
  select_diagonals(machine.stream(), whole);
  SelectDiagonalsArgs part = select_args(machine, sums);
  for (const int32_t segment : {0, 1, 2, 3, 4}) {
    std::vector<int64_t> of_segment;
    for (const int32_t list : {0, 5}) {
      const auto first = sums.begin() + (list + segment) * kNumTiles;
      of_segment.insert(of_segment.end(), first, first + kNumTiles);
    }
    part.diagonals = machine.tensor(of_segment, {2, 1, kNumTiles});
    part.rows = {.first = segment * kSegment,
                 .count = std::min(kSegment, kNumTokens - kFirst - segment * kSegment)};
    select_diagonals(machine.stream(), part);
  }
  machine.synchronize();
  EXPECT_EQ(values_of<int32_t>(part.mask.bits), values_of<int32_t>(whole.mask.bits));
  EXPECT_EQ(values_of<int64_t>(part.counts), values_of<int64_t>(whole.counts));
}

TEST(LinesContract, NamesTheRuleThatIsBroken) {
  Machine machine;
  Lines lines = score_rows(machine, PlantedText::random(3 * kSegment, 1), 1);
  lines.args.lines.count = 200;
  EXPECT_DEATH(score_lines(machine.stream(), lines.args), "lines.count must be 1 to");
  lines.args.lines = {.segment_tokens = 100};
  EXPECT_DEATH(score_lines(machine.stream(), lines.args), "lines.segment_tokens must be a mul");
}

}  // namespace
}  // namespace sluice::testing
