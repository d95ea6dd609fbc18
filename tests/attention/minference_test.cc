// minference: tiles and columns of the double-precision reference, its options and defaults, and
// planted lines.
#include "attention/policies/minference.h"

#include "attention/column_check.h"

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

constexpr int32_t kSegmentTokens = 256;
constexpr int32_t kNumVerticals = 30;
constexpr int32_t kDiagonals = 3;
constexpr int32_t kPromptTiles = 8;  // of kTilePromptTokens

SparseOptions lines(SparseOptions options = {}) {
  options.segment_tokens = kSegmentTokens;
  options.vertical_tokens = kNumVerticals;
  options.slash_tokens = kDiagonals * kMaskTileTokens;
  return options;
}

// The word of a query tile: its diagonals, and what the rule adds.
int32_t word_of(const TileRule& rule, const QueryTile& tile,
                const std::vector<int32_t>& diagonals) {
  uint32_t word = 0;
  for (int32_t j = 0; j <= tile.q_tile; ++j) {
    const int32_t diagonal = tile.q_tile - j;
    const bool is_set = attends_everything(rule, tile) || is_forced(rule, tile, j) ||
                        diagonal < 2 ||
                        std::binary_search(diagonals.begin(), diagonals.end(), diagonal);
    if (is_set) word |= 1u << j;
  }
  return static_cast<int32_t>(word);
}

// The selection of the whole prompt is that of the reference's sums.
void expect_lines(const SparseOptions& options, const TileRule& rule) {
  PolicyRig rig(make_policies("minference+full", options), kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  const int32_t num_lists = options.shared_list ? 1 : PolicyRig::kKvHeads;
  const reference::LineScores sums =
      reference::line_scores(rig.rows_and_keys(prompt, {}), kSegmentTokens, 64, num_lists);
  const Selection selection = rig.select(Phase::kPrefill, {prompt});
  ASSERT_TRUE(masked_in(selection) != nullptr);
  ASSERT_TRUE(masked_in(selection)->columns.present());
  std::vector<int32_t> words;
  for (int32_t list = 0; list < num_lists; ++list) {
    for (int32_t segment = 0; segment * kSegmentTokens < kTilePromptTokens; ++segment) {
      const int32_t row = list * 4 + segment;
      const int32_t end = std::min((segment + 1) * kSegmentTokens, kTilePromptTokens);
      const bool is_dense = segment * kSegmentTokens < rule.threshold_tokens;
      if (!is_dense) {
        EXPECT_EQ(columns_at(masked_in(selection)->columns, list, segment),
                  largest(sums.verticals.data() + row * kTilePromptTokens, rule.sink_tokens, end,
                          *options.vertical_tokens))
            << "list " << list << " segment " << segment;
      }
      const int32_t num_tiles = static_cast<int32_t>(mask_tiles_of(end));
      const int64_t budget = mask_tiles_of(*options.slash_tokens);
      const std::vector<int32_t> diagonals =
          largest(sums.diagonals.data() + row * kPromptTiles, 2, kPromptTiles, budget - 2);
      for (int32_t q_tile = segment * 2; q_tile < num_tiles; ++q_tile) {
        const QueryTile tile{.q_tile = q_tile, .prompt_end = kTilePromptTokens};
        const bool all = budget >= num_tiles;
        words.push_back(all ? static_cast<int32_t>((2u << q_tile) - 1)
                            : word_of(rule, tile, diagonals));
      }
    }
  }
  EXPECT_EQ(words_of(masked_in(selection)->mask), words);
}

TEST(MInference, SelectsTheLinesOfTheReference) {
  const TileRule rule = bare_rule(TileChoice::kTop);
  expect_lines(bare(lines()), rule);
  expect_lines(bare(lines({.shared_list = true})), rule);
}

TEST(MInference, OptionsOfTheRule) {
  const auto with = [&](auto change) {
    std::pair<SparseOptions, TileRule> changed(bare(lines()), bare_rule(TileChoice::kTop));
    change(changed.first, changed.second);
    expect_lines(changed.first, changed.second);
  };
  with([](SparseOptions& o, TileRule& r) { o.sink_tokens = r.sink_tokens = 129; });
  with([](SparseOptions& o, TileRule& r) { o.recent_tokens = r.recent_tokens = 300; });
  with([](SparseOptions& o, TileRule& r) { o.threshold_tokens = r.threshold_tokens = 500; });
  with([](SparseOptions& o, TileRule& r) { o.tail_tokens = r.tail_tokens = 5; });
  with([](SparseOptions& o, TileRule&) { o.slash_tokens = 5 * kMaskTileTokens; });
  with([](SparseOptions& o, TileRule&) { o.vertical_tokens = 200; });
  with([](SparseOptions& o, TileRule&) { o.vertical_tokens = 0; });
}

TEST(MInference, WhatEveryTilePolicyHas) {
  testing::expect_column_cuts_change_nothing("minference", bare(lines()));
  testing::expect_dense_where_asked("minference", bare(lines()));
  testing::expect_counts("minference", bare(lines()));
  testing::expect_planned_memory("minference", bare(lines()));
}

TEST(MInference, Defaults) {
  PolicyRig rig(make_policies("minference+full"), 128);
  EXPECT_TRUE(rig.rule(Phase::kPrefill).selects_all(4096));
  EXPECT_FALSE(rig.rule(Phase::kPrefill).selects_all(4097));
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_scope_tokens(), 4096);
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_tail_tokens(), 128);
}

// A key that the last rows of a segment look at is a column of the segment.
TEST(MInference, FindsAPlantedVertical) {
  constexpr int32_t kKey = 300;
  PolicyRig rig(make_policies("minference+full", bare(lines())), 128);
  const int32_t last_row = 767;
  rig.plant({.pos = kKey}, last_row);
  rig.run(Phase::kPrefill, {{0, 0, 900}});
  const Selection selection = rig.select(Phase::kPrefill, {{0, 0, 900}});
  const std::vector<int32_t> columns =
      columns_at(masked_in(selection)->columns, 0, last_row / kSegmentTokens);
  EXPECT_TRUE(std::binary_search(columns.begin(), columns.end(), kKey));
}

}  // namespace
}  // namespace sluice
