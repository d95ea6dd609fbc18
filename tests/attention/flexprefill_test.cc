// flexprefill: kinds of heads, tiles and columns of the double-precision references, its options
// and defaults, and planted patterns of both kinds.
#include "attention/policies/flexprefill.h"

#include <algorithm>
#include <numeric>

#include "attention/column_check.h"
#include "ops/reference/head_patterns.h"

namespace sluice {
namespace {

using testing::bare;
using testing::bare_rule;
using testing::columns_at;
using testing::kTilePromptTokens;
using testing::largest;
using testing::PolicyRig;
using testing::Span;
using testing::words_of;

constexpr int32_t kSegment = 256;
constexpr int32_t kNumTiles = 8;  // of kTilePromptTokens
constexpr int32_t kNumSegments = 4;
constexpr int32_t kVerticals = 300;
constexpr double kCoverage = 0.6;
// Between the distances of KV head 0, whose keys are planted, and of the others; and between those
// of its two query heads.
constexpr double kBetweenLists = 0.2;
constexpr double kWithinAList = 0.39;

SparseOptions flex(SparseOptions options = {}) {
  options.segment_tokens = kSegment;
  options.coverage = options.coverage.value_or(kCoverage);
  options.vertical_tokens = options.vertical_tokens.value_or(kVerticals);
  options.min_budget_tokens = 0;
  options.divergence = options.divergence.value_or(kWithinAList);
  return bare(options);
}

TileRule flex_rule() {
  TileRule rule = bare_rule(TileChoice::kCoverage);
  rule.share = testing::share_of_mass(kCoverage);
  return rule;
}

// In segments 2 and 3 every third line row of KV head 0's first query head looks at the key 256
// tokens before it. Pools see nothing of it: their keys are means.
void plant_slash(PolicyRig& rig) {
  for (int32_t row = 640; row < 768; row += 3) rig.plant({.pos = row - 256}, row);
  for (int32_t row = 772; row < kTilePromptTokens; row += 3) rig.plant({.pos = row - 256}, row);
}

// What the references say of the prompt of a rig.
struct Expected {
  std::vector<double> distances;      // [query heads][segments]
  reference::LineScores lines;        // a list for each query head
  std::vector<double> pooled_masses;  // [query heads][query tiles][KV tiles]
};

Expected references_of(PolicyRig& rig) {
  const Span prompt{0, 0, kTilePromptTokens};
  const TileProbes pools{
      .kind = TileProbeKind::kPooled, .key_pool_tokens = 128, .query_pool_tokens = 128};
  const ScoreTilesArgs args = rig.rows_and_keys(prompt, pools);
  return {.distances = reference::line_divergences(args, kSegment, 128),
          .lines = reference::line_scores(args, kSegment, 128, PolicyRig::kQueryHeads),
          .pooled_masses = reference::tile_masses(reference::score_tiles(args),
                                                  {.num_q_heads = PolicyRig::kQueryHeads,
                                                   .num_kv_heads = PolicyRig::kQueryHeads,
                                                   .num_q_tiles = kNumTiles,
                                                   .probes_per_tile = 1,
                                                   .num_kv_tiles = kNumTiles})};
}

// The sums over some heads of rows of `width` numbers: row `row` of the `num_rows` of each head.
std::vector<double> sum_of(const std::vector<double>& numbers, const std::vector<int32_t>& heads,
                           int32_t num_rows, int32_t row, int32_t width) {
  std::vector<double> sums(static_cast<size_t>(width));
  for (const int32_t head : heads) {
    for (int32_t i = 0; i < width; ++i) {
      sums[static_cast<size_t>(i)] +=
          numbers[static_cast<size_t>((head * num_rows + row) * width + i)];
    }
  }
  return sums;
}

// How many of numbers in falling order it takes for the rest to be no more than the uncovered share
// of `total`.
int64_t count_for(double share, const std::vector<double>& numbers, int32_t begin, int32_t end,
                  double total) {
  std::vector<double> order(numbers.begin() + begin, numbers.begin() + std::max(begin, end));
  std::sort(order.rbegin(), order.rend());
  double left = std::accumulate(order.begin(), order.end(), 0.0);
  int64_t count = 0;
  while (count < std::ssize(order) && left > (1 - share) * total) {
    left -= order[static_cast<size_t>(count++)];
  }
  return count;
}

// One list and segment under a rule.
struct Check {
  const SparseOptions& options;
  const TileRule& rule;
  const Expected& expected;
  int32_t segment;
  std::vector<int32_t> line_heads;
  std::vector<int32_t> tile_heads;

  int32_t end() const { return std::min((segment + 1) * kSegment, kTilePromptTokens); }

  std::vector<int32_t> columns() const {
    const std::vector<double> sums =
        sum_of(expected.lines.verticals, line_heads, kNumSegments, segment, kTilePromptTokens);
    const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
    const int64_t count = count_for(*options.coverage, sums, rule.sink_tokens, end(), total);
    return largest(sums.data(), rule.sink_tokens, end(),
                   std::min<int64_t>(count, *options.vertical_tokens));
  }

  // Diagonals in the order in which they are taken, and how many are.
  std::pair<std::vector<int32_t>, int64_t> diagonals() const {
    const auto end_tile = static_cast<int32_t>(mask_tiles_of(end()));
    const std::vector<double> sums =
        sum_of(expected.lines.diagonals, line_heads, kNumSegments, segment, kNumTiles);
    std::vector<int32_t> order(static_cast<size_t>(end_tile));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin() + 2, order.end(), [&](int32_t a, int32_t b) {
      return sums[static_cast<size_t>(a)] > sums[static_cast<size_t>(b)];
    });
    const double total = std::accumulate(sums.begin(), sums.begin() + end_tile, 0.0);
    return {order, 2 + count_for(*options.coverage, sums, 2, end_tile, total)};
  }

  uint32_t lines_word(const QueryTile& tile) const {
    uint32_t word = 0;
    for (int32_t j = 0; j <= tile.q_tile; ++j) word |= is_forced(rule, tile, j) ? 1u << j : 0;
    if (line_heads.empty()) return word;
    const auto [order, count] = diagonals();
    for (int64_t rank = 0; rank < std::ssize(order); ++rank) {
      const int32_t j = tile.q_tile - order[static_cast<size_t>(rank)];
      if (j >= 0 && (rank < count || std::popcount(word) < rule.min_tiles)) word |= 1u << j;
    }
    return word;
  }

  uint32_t tiles_word(const QueryTile& tile) const {
    if (tile_heads.empty()) return 0;
    const std::vector<double> sums =
        sum_of(expected.pooled_masses, tile_heads, kNumTiles, tile.q_tile, kNumTiles);
    std::vector<uint32_t> masses;
    for (int32_t j = 0; j <= tile.q_tile; ++j) {
      const double mass = sums[static_cast<size_t>(j)] / static_cast<double>(tile_heads.size());
      masses.push_back(static_cast<uint32_t>(mass * kMassOne));
    }
    const TileSelection selection = take_tiles(rule, tile, masses);
    uint32_t word = 0;
    for (size_t j = 0; j < masses.size(); ++j) word |= selection.is_set[j] ? 1u << j : 0;
    return word;
  }

  int32_t word(int32_t q_tile) const {
    const QueryTile tile{.q_tile = q_tile, .prompt_end = kTilePromptTokens};
    if (attends_everything(rule, tile)) return static_cast<int32_t>((2u << q_tile) - 1);
    return static_cast<int32_t>(lines_word(tile) | tiles_word(tile));
  }
};

// The selection of the whole prompt is that of the references. Returns how many lists have heads of
// both kinds in a segment.
int32_t expect_selection(const SparseOptions& options, const TileRule& rule) {
  PolicyRig rig(make_policies("flexprefill+full", options), kMaskTileTokens);
  plant_slash(rig);
  rig.run(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
  const Expected expected = references_of(rig);
  const Selection selection = rig.select(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
  EXPECT_TRUE(masked_in(selection) != nullptr && masked_in(selection)->columns.present());
  const int32_t num_lists = options.shared_list ? 1 : PolicyRig::kKvHeads;
  const int32_t heads_per_list = PolicyRig::kQueryHeads / num_lists;
  std::vector<int32_t> words;
  int32_t num_mixed = 0;
  for (int32_t list = 0; list < num_lists; ++list) {
    for (int32_t segment = 0; segment < kNumSegments; ++segment) {
      Check check{options, rule, expected, segment, {}, {}};
      for (int32_t head = list * heads_per_list; head < (list + 1) * heads_per_list; ++head) {
        const double distance =
            expected.distances[static_cast<size_t>(head * kNumSegments + segment)];
        (distance < *options.divergence ? check.tile_heads : check.line_heads).push_back(head);
      }
      num_mixed += check.tile_heads.empty() || check.line_heads.empty() ? 0 : 1;
      EXPECT_EQ(columns_at(masked_in(selection)->columns, list, segment), check.columns())
          << "list " << list << " segment " << segment;
      for (int32_t q_tile = segment * 2; q_tile < mask_tiles_of(check.end()); ++q_tile) {
        words.push_back(check.word(q_tile));
      }
    }
  }
  EXPECT_EQ(words_of(masked_in(selection)->mask), words);
  return num_mixed;
}

TEST(FlexPrefill, SelectsWhatTheReferencesSay) {
  EXPECT_GE(expect_selection(flex(), flex_rule()), 1) << "heads of both kinds in one list";
  EXPECT_EQ(expect_selection(flex({.divergence = kBetweenLists}), flex_rule()), 0);
  EXPECT_GE(expect_selection(flex({.shared_list = true, .divergence = kBetweenLists}), flex_rule()),
            2);
  EXPECT_EQ(expect_selection(flex({.divergence = 0.0}), flex_rule()), 0);
  EXPECT_EQ(expect_selection(flex({.divergence = 1.0}), flex_rule()), 0);
}

TEST(FlexPrefill, OptionsOfTheRule) {
  const auto with = [&](auto change) {
    std::pair<SparseOptions, TileRule> changed(flex(), flex_rule());
    change(changed.first, changed.second);
    expect_selection(changed.first, changed.second);
  };
  with([](SparseOptions& o, TileRule& r) { o.sink_tokens = r.sink_tokens = 129; });
  with([](SparseOptions& o, TileRule& r) { o.recent_tokens = r.recent_tokens = 300; });
  with([](SparseOptions& o, TileRule& r) { o.threshold_tokens = r.threshold_tokens = 500; });
  with([](SparseOptions& o, TileRule& r) { o.tail_tokens = r.tail_tokens = 5; });
  with([](SparseOptions& o, TileRule& r) { o.min_budget_tokens = 600, r.min_tiles = 5; });
  with([](SparseOptions& o, TileRule& r) {
    o.coverage = 0.3;
    r.share = testing::share_of_mass(0.3);
  });
  with([](SparseOptions& o, TileRule&) { o.vertical_tokens = 10; });
  with([](SparseOptions& o, TileRule&) { o.vertical_tokens = 0; });
}

// Where all heads take tiles it is avgpool with pools of tiles, without columns.
TEST(FlexPrefill, TilesAloneAreThoseOfAvgpool) {
  const auto selection_of = [](const std::string& policy, const SparseOptions& options) {
    PolicyRig rig(make_policies(policy, options), kMaskTileTokens);
    rig.run(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
    const Selection selection = rig.select(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
    if (masked_in(selection)->columns.present()) {
      for (const std::vector<int32_t>& columns :
           testing::all_columns(masked_in(selection)->columns)) {
        EXPECT_TRUE(columns.empty());
      }
    }
    return words_of(masked_in(selection)->mask);
  };
  EXPECT_EQ(
      selection_of("flexprefill+full", flex({.divergence = 1.0})),
      selection_of("avgpool+full",
                   bare({.coverage = kCoverage, .pool_tokens = 128, .query_pool_tokens = 128})));
}

TEST(FlexPrefill, WhatEveryTilePolicyHas) {
  for (const double divergence : {0.0, kWithinAList, 1.0}) {
    const SparseOptions options = flex({.divergence = divergence});
    testing::expect_column_cuts_change_nothing("flexprefill", options);
    testing::expect_dense_where_asked("flexprefill", options);
    testing::expect_counts("flexprefill", options);
    testing::expect_planned_memory("flexprefill", options);
  }
}

TEST(FlexPrefill, Defaults) {
  PolicyRig rig(make_policies("flexprefill+full"), 128);
  EXPECT_TRUE(rig.rule(Phase::kPrefill).selects_all(4096));
  EXPECT_FALSE(rig.rule(Phase::kPrefill).selects_all(4097));
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_scope_tokens(), 4096);
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_tail_tokens(), 128);
}

// Full coverage is full attention, whatever the kinds are.
TEST(FlexPrefill, CoverageOfOneMakesNoMask) {
  PolicyRig rig(make_policies("flexprefill+full", flex({.coverage = 1.0})), 128);
  EXPECT_TRUE(rig.rule(Phase::kPrefill).selects_all(PolicyRig::kMaxTokens));
}

// The planted slash is a diagonal for all rows of its segments, and of its list alone.
TEST(FlexPrefill, FindsAPlantedSlash) {
  PolicyRig rig(make_policies("flexprefill+full", flex({.vertical_tokens = 0})), 128);
  plant_slash(rig);
  rig.run(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
  const Selection selection = rig.select(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
  const std::vector<int32_t> words = words_of(masked_in(selection)->mask);
  for (int32_t q_tile = 4; q_tile < kNumTiles; ++q_tile) {
    EXPECT_NE(words[static_cast<size_t>(q_tile)] & 1 << (q_tile - 2), 0) << q_tile;
  }
}

// A key that a line row looks at is a column, where heads take lines.
TEST(FlexPrefill, FindsAPlantedVertical) {
  constexpr int32_t kKey = 300, kLastRow = 767;
  for (const double divergence : {0.0, 1.0}) {
    PolicyRig rig(make_policies("flexprefill+full", flex({.divergence = divergence})), 128);
    rig.plant({.pos = kKey}, kLastRow);
    rig.run(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
    const Selection selection = rig.select(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
    const std::vector<int32_t> columns =
        columns_at(masked_in(selection)->columns, 0, kLastRow / kSegment);
    EXPECT_EQ(std::binary_search(columns.begin(), columns.end(), kKey), divergence == 0.0);
  }
}

}  // namespace
}  // namespace sluice
