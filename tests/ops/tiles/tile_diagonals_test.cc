// Tile diagonals: select_diagonals against its definition.
//
// Reveals: ties by chance, diagonals without tiles that take the place of others, windows that
// change a choice, shares of the wrong total.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "ops/tiles/scored_text.h"
#include "ops/tiles/tile_lines.h"

namespace sluice::testing {
namespace {

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

// The diagonals of a segment as they are taken: 0 and 1, then by falling sum.
std::vector<int32_t> ranked(const std::vector<int64_t>& sums, int32_t end_tile) {
  std::vector<int32_t> order(static_cast<size_t>(end_tile));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin() + 2, order.end(), [&](int32_t a, int32_t b) {
    return sums[static_cast<size_t>(a)] > sums[static_cast<size_t>(b)];
  });
  return order;
}

// How many of them hold the rule's share.
int64_t count_for_share(const TileRule& rule, const std::vector<int64_t>& sums,
                        const std::vector<int32_t>& order) {
  int64_t total = 0;
  for (const int32_t d : order) total += sums[static_cast<size_t>(d)];
  const double goal = static_cast<double>(total) * rule.share / kMassOne;
  int64_t covered = sums[0] + sums[1];
  int64_t count = 2;
  while (static_cast<double>(covered) < goal) {
    covered += sums[static_cast<size_t>(order[static_cast<size_t>(count++)])];
  }
  return count;
}

// The word of a query tile whose segment has these sums, by the definition.
uint32_t expected_word(const SelectDiagonalsArgs& args, const QueryTile& tile, int64_t max_count,
                       const std::vector<int64_t>& sums, int32_t end_tile) {
  const uint32_t all = (2u << tile.q_tile) - 1;
  const std::vector<int32_t> order = ranked(sums, end_tile);
  const bool by_share = args.rule.choice == TileChoice::kCoverage;
  const bool is_blank =
      std::all_of(sums.begin(), sums.begin() + end_tile, [](int64_t sum) { return sum == 0; });
  if (is_blank || (!by_share && max_count >= end_tile)) return all;
  if (attends_everything(args.rule, tile)) return all;
  uint32_t word = 0;
  for (int32_t j = 0; j <= tile.q_tile; ++j) {
    if (is_forced(args.rule, tile, j)) word |= 1u << j;
  }
  const int64_t count = by_share ? count_for_share(args.rule, sums, order) : max_count;
  for (int64_t rank = 0; rank < end_tile; ++rank) {
    const int32_t d = order[static_cast<size_t>(rank)];
    const bool is_chosen = rank < 2 || (rank < count && sums[static_cast<size_t>(d)] > 0);
    if (d <= tile.q_tile && (is_chosen || std::popcount(word) < args.rule.min_tiles)) {
      word |= 1u << (tile.q_tile - d);
    }
  }
  return word;
}

// max_count of a list, or fewer by the rule's share of the keys up to the end of the segment.
int64_t most_of(const SelectDiagonalsArgs& args, int32_t list, int32_t segment) {
  if (!args.max_count.present()) return 0;  // not read
  const int64_t max_count = args.max_count.data<int32_t>()[list];
  if (args.rule.key_share == 0) return max_count;
  const double num_keys = std::min((segment + 2) * kSegment, kNumTokens);
  const double tiles = std::ceil(num_keys * args.rule.key_share / kMassOne / kTile);
  return std::min(max_count, static_cast<int64_t>(tiles));
}

// The masks of both lists; those of lists and segments without lines have forced tiles alone.
std::vector<int32_t> expected_words(const SelectDiagonalsArgs& args,
                                    const std::vector<int64_t>& sums,
                                    const std::vector<bool>& has_lines) {
  std::vector<int32_t> words;
  for (int32_t list = 0; list < 2; ++list) {
    for (int32_t q_tile = 2; q_tile < 12; ++q_tile) {
      const int32_t segment = std::min(q_tile / 2 - 1, 4);
      const auto first = sums.begin() + (list * 5 + segment) * kNumTiles;
      const QueryTile tile{.q_tile = q_tile, .prompt_end = args.prompt_end};
      uint32_t word =
          expected_word(args, tile, most_of(args, list, segment), {first, first + kNumTiles},
                        std::min((segment + 2) * 2, kNumTiles));
      if (!has_lines[static_cast<size_t>(list * 5 + segment)] &&
          !attends_everything(args.rule, tile)) {
        word = 0;
        for (int32_t j = 0; j <= q_tile; ++j) word |= is_forced(args.rule, tile, j) ? 1u << j : 0;
      }
      words.push_back(q_tile <= 10 ? static_cast<int32_t>(word) : 0);
    }
  }
  return words;
}

constexpr TileRule kNothingForced{
    .choice = TileChoice::kTop, .sink_tokens = 0, .recent_tokens = 0, .tail_tokens = 0};

// Runs the op and compares words and counts. Returns the words.
std::vector<int32_t> expect_selected(Machine& machine, const SelectDiagonalsArgs& args,
                                     const std::vector<int64_t>& sums,
                                     const std::vector<bool>& has_lines = std::vector<bool>(10,
                                                                                            true)) {
  select_diagonals(machine.stream(), args);
  machine.synchronize();
  const std::vector<int32_t> expected = expected_words(args, sums, has_lines);
  const std::vector<int32_t> words = values_of<int32_t>(args.mask.bits);
  int64_t num_set = 0;
  for (size_t i = 0; i < 20; ++i) {
    if (i % 10 == 9) continue;  // query tile 11 has no rows, and no entry in `rows`
    EXPECT_EQ(words[i], expected[i]) << i;
    num_set += std::popcount(static_cast<uint32_t>(expected[i]));
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
    expect_selected(machine, args, sums);
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
      const std::vector<int32_t> words = expect_selected(machine, args, sums);
      // The last query tile of segment 1 and that of segment 5, which sees most keys.
      if (share == 0.3 && max_count > 4) {
        EXPECT_EQ(std::popcount(static_cast<uint32_t>(words[1])), 2);
        EXPECT_EQ(std::popcount(static_cast<uint32_t>(words[8])), 4);
      }
    }
  }
}

// A share of all sums in place of a count; at least some tiles; and lists of which some segments
// have no head with lines.
TEST(SelectDiagonals, TakesAShareOfTheSums) {
  constexpr auto kLines = static_cast<int32_t>(HeadPattern::kLines);
  constexpr auto kTiles = static_cast<int32_t>(HeadPattern::kTiles);
  const std::vector<int64_t> sums = tied_sums();
  for (const uint32_t share : {kMassOne / 2, kMassOne / 10 * 9, kMassOne - 1}) {
    for (const int32_t min_tiles : {0, 5, 20}) {
      Machine machine;
      SelectDiagonalsArgs args = select_args(machine, sums);
      args.max_count = {};
      args.rule = {.choice = TileChoice::kCoverage,
                   .share = share,
                   .sink_tokens = 0,
                   .recent_tokens = 0,
                   .tail_tokens = 0,
                   .min_tiles = min_tiles};
      expect_selected(machine, args, sums);
      args.counts = machine.tensor(std::vector<int64_t>{1, 2, 3}, {3});
      // Of each list two heads; a list has lines if one of them has.
      args.patterns = machine.tensor(
          std::vector<int32_t>{kLines, kTiles, kTiles, kLines, kTiles, kLines, kLines,
                               kTiles, kTiles, kTiles, kTiles, kLines, kLines, kTiles,
                               kLines, kTiles, kTiles, kLines, kLines, kTiles},
          {4, 5});
      expect_selected(machine, args, sums,
                      {true, true, false, true, false, false, true, true, true, true});
    }
  }
}

// A diagonal that begins where the segment ends has no tile in it. Another window might have no sum
// of it, so that it must not take the place of another one.
TEST(SelectDiagonals, LaterDiagonalsCountForNothing) {
  Machine machine;
  std::vector<int64_t> sums(2 * 5 * kNumTiles);
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = static_cast<int64_t>(i % kNumTiles >= 4 ? 1000 : 1 + i % kNumTiles);
  }
  const SelectDiagonalsArgs args = select_args(machine, sums);
  select_diagonals(machine.stream(), args);
  machine.synchronize();
  // Segment 1 has 4 tiles; list 0 takes 4 diagonals: everything. With 3 of them diagonals 0, 1, 3.
  EXPECT_EQ(values_of<int32_t>(args.mask.bits)[1], 15);
  SelectDiagonalsArgs fewer = select_args(machine, sums);
  fewer.max_count = machine.tensor(std::vector<int32_t>{3, 3}, {2});
  fewer.rule = kNothingForced;
  select_diagonals(machine.stream(), fewer);
  machine.synchronize();
  EXPECT_EQ(values_of<int32_t>(fewer.mask.bits)[1], 8 + 4 + 1);
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

// More diagonals than a GPU's block has threads, with sums of all sizes: a row of tiles far from
// the beginning.
TEST(SelectDiagonals, TakesAShareOfManySums) {
  constexpr int32_t kMany = 3001;
  std::mt19937_64 generator(8);
  std::vector<int64_t> sums(kMany);
  for (int64_t& sum : sums) sum = static_cast<int64_t>(generator() >> (generator() % 40 + 20));
  const TileRule rule{.choice = TileChoice::kCoverage,
                      .share = kMassOne / 10 * 9,
                      .sink_tokens = 0,
                      .recent_tokens = 0,
                      .tail_tokens = 0};
  for (const int32_t min_tiles : {0, 700}) {
    Machine machine;
    SelectDiagonalsArgs args{
        .diagonals = machine.tensor(sums, {1, 1, kMany}),
        .segment_tokens = 4 * kTile,
        .batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, 5}, {2}),
                  .first_pos = machine.tensor(std::vector<int32_t>{(kMany - 1) * kTile}, {1})},
        .rows = {.first = 0, .count = 5},
        .prompt_end = 1 << 20,
        .rule = rule,
        .mask = {.bits = machine.tensor(DType::kI32, {1, 1, 1, 94}), .first_q_tile = kMany - 1},
        .counts = machine.tensor(std::vector<int64_t>{0, 0, 0}, {3})};
    args.rule.min_tiles = min_tiles;
    select_diagonals(machine.stream(), args);
    machine.synchronize();
    const std::vector<int32_t> order = ranked(sums, kMany);
    const int64_t count = std::max<int64_t>(min_tiles, count_for_share(rule, sums, order));
    ASSERT_LT(count, 1500);
    std::vector<uint32_t> words(94);
    for (int64_t rank = 0; rank < count; ++rank) {
      const int32_t j = kMany - 1 - order[static_cast<size_t>(rank)];
      words[static_cast<size_t>(j / 32)] |= 1u << j % 32;
    }
    const std::vector<int32_t> expected(words.begin(), words.end());
    EXPECT_EQ(values_of<int32_t>(args.mask.bits), expected);
    EXPECT_EQ(values_of<int64_t>(args.counts), (std::vector<int64_t>{count, kMany, 0}));
  }
}

}  // namespace
}  // namespace sluice::testing
