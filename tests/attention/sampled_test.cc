// sampled: masks of the references, its own options and defaults, and what probes can miss.
#include "attention/policies/sampled.h"

#include <bit>
#include <optional>

#include "attention/column_check.h"

namespace sluice {
namespace {

using testing::bare_rule;
using testing::columns_at;
using testing::coverage;
using testing::expect_masks;
using testing::expect_tile_policy;
using testing::kTilePromptTokens;
using testing::PolicyRig;
using testing::share_of_mass;
using testing::Span;
using testing::words_of;

// Without columns, unless the options name some.
SparseOptions without_columns(SparseOptions options) {
  if (!options.column_tokens) options.column_tokens = 0;
  return testing::bare(options);
}

TEST(Sampled, MasksAreThoseOfTheReference) {
  expect_tile_policy("sampled", without_columns({.coverage = 0.5}), {.rows_per_tile = 4},
                     coverage(0.5));
}

TEST(Sampled, OwnOptions) {
  for (const int32_t rows : {1, 2, 8, 16}) {
    expect_masks("sampled", without_columns({.coverage = 0.6, .probe_rows = rows}),
                 {.rows_per_tile = rows}, coverage(0.6));
  }
  TileRule rest = coverage(0.5);
  rest.is_share_of_rest = true;
  expect_masks("sampled", without_columns({.coverage = 0.5, .coverage_of = CoverageOf::kRest}), {},
               rest);
  expect_masks("sampled", without_columns({.coverage = 0.5, .coverage_of = CoverageOf::kAll}), {},
               coverage(0.5));
}

TEST(Sampled, Defaults) {
  expect_masks("sampled", {.threshold_tokens = 128, .column_tokens = 0}, {.rows_per_tile = 4},
               {.share = share_of_mass(0.95),
                .sink_tokens = 128,
                .recent_tokens = 128,
                .threshold_tokens = 128,
                .tail_tokens = 128});
  PolicyRig rig(make_policies("sampled+full"), 128);
  EXPECT_TRUE(rig.rule(Phase::kPrefill).selects_all(4096));
  EXPECT_FALSE(rig.rule(Phase::kPrefill).selects_all(4097));
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_scope_tokens(), 512);
  EXPECT_EQ(make_policies("sampled+full", {.column_tokens = 0})
                ->of(Phase::kPrefill)
                .prefill_scope_tokens(),
            128);
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_tail_tokens(), 128);
}

reference::RecordShape record_shape(const Span& span, const TileProbes& probes, int32_t num_lists) {
  return {.num_q_heads = PolicyRig::kQueryHeads,
          .num_kv_heads = num_lists,
          .num_q_tiles = static_cast<int32_t>(mask_tiles_of(span.num_rows)),
          .probes_per_tile = probes_per_tile(probes),
          .num_kv_tiles = static_cast<int32_t>(mask_tiles_of(span.end_pos()))};
}

// What the first of two stages keeps, by the reference: a quarter of the tiles that a query tile
// sees by means of 16 keys and the probe rows, and what the options force.
struct Kept {
  std::vector<int32_t> words;
  TileMask mask;

  Kept(PolicyRig& rig, const Span& span, const SparseOptions& options) {
    const TileProbes pools{.kind = TileProbeKind::kPooled,
                           .rows_per_tile = options.probe_rows.value_or(4),
                           .key_pool_tokens = 16,
                           .query_pool_tokens = 0};
    const int32_t num_lists = options.shared_list ? 1 : PolicyRig::kKvHeads;
    const reference::RecordShape shape = record_shape(span, pools, num_lists);
    const TileRule rule{
        .choice = TileChoice::kPart,
        .share = kMassOne / 4,
        .sink_tokens = *options.sink_tokens,
        .recent_tokens = *options.recent_tokens,
        .threshold_tokens = *options.two_stage_tokens,
        .tail_tokens = 0,
        .min_tiles = static_cast<int32_t>(mask_tiles_of(options.min_budget_tokens.value_or(0)))};
    words = reference::mask_words(reference::score_tiles(rig.rows_and_keys(span, pools)), shape,
                                  rule, span.first_pos / kMaskTileTokens, kTilePromptTokens);
    mask = {.bits = TensorView(words.data(), DType::kI32, {1, num_lists, shape.num_q_tiles, 1}),
            .first_q_tile = span.first_pos / kMaskTileTokens};
  }
};

// Masks of the whole prompt and of a span in its middle.
void expect_two_stage_masks(const SparseOptions& options, const TileRule& rule) {
  PolicyRig rig(make_policies("sampled+full", options), kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  const int32_t num_lists = options.shared_list ? 1 : PolicyRig::kKvHeads;
  for (const Span& span : {prompt, Span{0, 384, 300, kTilePromptTokens}}) {
    const Kept kept(rig, span, options);
    const TileProbes probes{.rows_per_tile = options.probe_rows.value_or(4)};
    ScoreTilesArgs args = rig.rows_and_keys(span, probes);
    args.visits = kept.mask;
    EXPECT_EQ(
        words_of(masked_in(rig.select(Phase::kPrefill, {span}))->mask),
        reference::mask_words(reference::score_tiles(args), record_shape(span, probes, num_lists),
                              rule, span.first_pos / kMaskTileTokens, kTilePromptTokens))
        << "rows from " << span.first_pos << ", two stages from " << *options.two_stage_tokens;
  }
}

TEST(Sampled, TwoStageMasksAreThoseOfTheReference) {
  for (const int32_t first_pos : {0, 256, 300, 896}) {
    expect_two_stage_masks(without_columns({.coverage = 0.7, .two_stage_tokens = first_pos}),
                           coverage(0.7));
  }
  for (const int32_t rows : {1, 16}) {
    expect_two_stage_masks(
        without_columns({.coverage = 0.6, .probe_rows = rows, .two_stage_tokens = 128}),
        coverage(0.6));
  }
  expect_two_stage_masks(
      without_columns({.shared_list = true, .coverage = 0.9, .two_stage_tokens = 0}),
      coverage(0.9));
  SparseOptions options = without_columns({.coverage = 0.9, .two_stage_tokens = 0});
  TileRule rule = coverage(0.9);
  options.sink_tokens = rule.sink_tokens = 129;
  options.recent_tokens = rule.recent_tokens = 129;
  expect_two_stage_masks(options, rule);
  options.min_budget_tokens = 600;
  rule.min_tiles = 5;
  expect_two_stage_masks(options, rule);
  options.tail_tokens = rule.tail_tokens = 5;
  expect_two_stage_masks(options, rule);
}

// No mask has more than a quarter of the tiles and the forced ones, and some are not those of one
// stage: the test above compares something.
TEST(Sampled, TheFirstStageLeavesTilesOut) {
  PolicyRig one(make_policies("sampled+full", without_columns({.coverage = 0.9})), kMaskTileTokens);
  PolicyRig two(
      make_policies("sampled+full", without_columns({.coverage = 0.9, .two_stage_tokens = 640})),
      kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  one.run(Phase::kPrefill, {prompt});
  two.run(Phase::kPrefill, {prompt});
  const std::vector<int32_t> all = words_of(masked_in(one.select(Phase::kPrefill, {prompt}))->mask);
  const std::vector<int32_t> kept =
      words_of(masked_in(two.select(Phase::kPrefill, {prompt}))->mask);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto q_tile = static_cast<int>(i % 8);
    if (q_tile < 5) {
      EXPECT_EQ(kept[i], all[i]) << "query tile " << q_tile << " begins before 640";
    } else {
      EXPECT_LE(std::popcount(static_cast<uint32_t>(kept[i])), (q_tile + 4) / 4 + 1);
      EXPECT_GT(std::popcount(static_cast<uint32_t>(all[i])), (q_tile + 4) / 4 + 1);
    }
  }
}

TEST(Sampled, TwoStagesAreLikeAnyTilePolicy) {
  const SparseOptions options = without_columns({.coverage = 0.6, .two_stage_tokens = 384});
  testing::expect_cuts_change_nothing("sampled", options);
  testing::expect_dense_where_asked("sampled", options);
  testing::expect_counts("sampled", options);
  testing::expect_planned_memory("sampled", options);
}

// Keys are walked once more only for passes with rows that two stages score.
TEST(Sampled, PassesBeforeTwoStagesWalkTheKeysOnce) {
  for (const int32_t columns : {0, 50}) {
    const auto policies = make_policies(
        "sampled+full", without_columns({.two_stage_tokens = 1000, .column_tokens = columns}));
    const TileScorer& scorer = *policies->of(Phase::kPrefill).tile_scorer();
    const auto num_walks = [&](int64_t first_pos, int64_t num_rows) {
      SelectInput input;
      input.span = {.first_pos = first_pos, .num_rows = num_rows, .prompt_end = 4096};
      return scorer.num_walks() - scorer.first_walk(input);
    };
    const int32_t one_stage = columns == 0 ? 1 : 3;
    EXPECT_EQ(num_walks(0, 1024), one_stage) << "its last tile begins at 896";
    EXPECT_EQ(num_walks(0, 1025), one_stage + 1);
    EXPECT_EQ(num_walks(1024, 128), one_stage + 1);
  }
}

// The columns of the second segment of 512 rows, and the tiles that cover what they do not, by the
// reference.
void expect_columns(const SparseOptions& options, const TileRule& rule) {
  PolicyRig rig(make_policies("sampled+full", options), kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  const int32_t num_lists = options.shared_list ? 1 : PolicyRig::kKvHeads;
  ScoreTilesArgs args = rig.rows_and_keys(prompt, {.rows_per_tile = 4});
  std::optional<Kept> kept;
  if (options.two_stage_tokens) args.visits = kept.emplace(rig, prompt, options).mask;
  const std::vector<double> scores = reference::column_scores(args, 512, num_lists);
  const std::vector<double> masses =
      reference::tile_masses(reference::score_tiles(args), {.num_q_heads = PolicyRig::kQueryHeads,
                                                            .num_kv_heads = num_lists,
                                                            .num_q_tiles = 8,
                                                            .probes_per_tile = 4,
                                                            .num_kv_tiles = 8});
  const Selection selection = rig.select(Phase::kPrefill, {prompt});
  ASSERT_TRUE(masked_in(selection)->columns.present());
  for (int32_t list = 0; list < num_lists; ++list) {
    EXPECT_TRUE(columns_at(masked_in(selection)->columns, list, 0).empty())
        << "nothing lies before them";
    const std::vector<int32_t> columns = columns_at(masked_in(selection)->columns, list, 1);
    EXPECT_EQ(columns,
              testing::largest(scores.data() + (list * 2 + 1) * kTilePromptTokens, rule.sink_tokens,
                               512 - rule.recent_tokens, *options.column_tokens));
    for (int32_t q_tile = 4; q_tile < 8; ++q_tile) {
      const double* first = masses.data() + (list * 8 + q_tile) * 8;
      std::vector<double> rest(first, first + q_tile + 1);
      const std::vector<double> of_columns =
          reference::column_masses(args, num_lists, list, q_tile);
      uint64_t column_mass = 0;
      for (const int32_t column : columns) {
        const double mass = of_columns[static_cast<size_t>(column)];
        rest[static_cast<size_t>(column / kMaskTileTokens)] -= mass;
        column_mass += static_cast<uint64_t>(mass * kMassOne);
      }
      std::vector<uint32_t> mass;
      for (const double share : rest) mass.push_back(share_of_mass(std::max(0.0, share)));
      const TileSelection taken =
          take_tiles(rule, {.q_tile = q_tile, .prompt_end = kTilePromptTokens}, mass, column_mass);
      uint32_t word = 0;
      for (int32_t j = 0; j <= q_tile; ++j) {
        word |= taken.is_set[static_cast<size_t>(j)] ? 1u << j : 0u;
      }
      EXPECT_EQ(words_of(masked_in(selection)->mask)[static_cast<size_t>(list * 8 + q_tile)],
                static_cast<int32_t>(word))
          << "list " << list << " query tile " << q_tile;
    }
  }
}

TEST(Sampled, ColumnsAndTheRestAreThoseOfTheReference) {
  for (const int32_t count : {1, 40, 128, 300}) {
    expect_columns(without_columns({.coverage = 0.6, .column_tokens = count}), coverage(0.6));
  }
  expect_columns(without_columns({.shared_list = true, .coverage = 0.6, .column_tokens = 60}),
                 coverage(0.6));
  SparseOptions options = without_columns({.coverage = 0.7, .column_tokens = 60});
  TileRule rule = coverage(0.7);
  options.sink_tokens = rule.sink_tokens = 100;
  options.recent_tokens = rule.recent_tokens = 130;
  expect_columns(options, rule);
}

// Columns come from all tiles, those of the others included, where their mass is more than nothing.
TEST(Sampled, ColumnsOfTwoStagesAreThoseOfTheReference) {
  for (const int32_t count : {1, 40, 128}) {
    expect_columns(
        without_columns({.coverage = 0.6, .two_stage_tokens = 512, .column_tokens = count}),
        coverage(0.6));
  }
  expect_columns(
      without_columns(
          {.shared_list = true, .coverage = 0.6, .two_stage_tokens = 640, .column_tokens = 60}),
      coverage(0.6));
}

TEST(Sampled, ColumnsAreLikeAnyTilePolicy) {
  const SparseOptions options = without_columns({.coverage = 0.5, .column_tokens = 50});
  testing::expect_column_cuts_change_nothing("sampled", options);
  testing::expect_dense_where_asked("sampled", options);
  testing::expect_counts("sampled", options);
  testing::expect_planned_memory("sampled", options);
  const SparseOptions two_stages =
      without_columns({.coverage = 0.5, .two_stage_tokens = 512, .column_tokens = 50});
  testing::expect_column_cuts_change_nothing("sampled", two_stages);
  testing::expect_counts("sampled", two_stages);
  testing::expect_planned_memory("sampled", two_stages);
}

// A single key that one probe looks at is lost in a pool of 16, beside two tiles in which another
// probe looks at whole pools. As a column it is attended to: columns are chosen among all keys.
TEST(Sampled, ColumnsFindWhatTheFirstStageCannotSee) {
  constexpr int32_t kKey = 200, kQueryTile = 6;
  const Span prompt{0, 0, kTilePromptTokens};
  for (const int32_t columns : {0, 20}) {
    const SparseOptions options =
        without_columns({.coverage = 0.9, .two_stage_tokens = 512, .column_tokens = columns});
    PolicyRig rig(make_policies("sampled+full", options), kMaskTileTokens);
    const int32_t index = column_probe(kQueryTile, 4);
    rig.plant({.pos = kKey}, probe_row(kQueryTile, index, 4));
    for (int32_t i = 0; i < 16; ++i) {
      rig.plant({.pos = 256 + i}, probe_row(kQueryTile, (index + 1) % 4, 4));
      rig.plant({.pos = 384 + i}, probe_row(kQueryTile, (index + 1) % 4, 4));
    }
    rig.run(Phase::kPrefill, {prompt});
    constexpr uint32_t kBit = 1u << (kKey / kMaskTileTokens);
    const Kept kept(rig, prompt, options);
    ASSERT_EQ(static_cast<uint32_t>(kept.words[kQueryTile]) & kBit, 0u) << "the pools see it";
    const Selection selection = rig.select(Phase::kPrefill, {prompt});
    EXPECT_EQ(static_cast<uint32_t>(words_of(masked_in(selection)->mask)[kQueryTile]) & kBit, 0u);
    EXPECT_EQ(
        PolicyRig::is_column(masked_in(selection)->columns, 0, kQueryTile * kMaskTileTokens, kKey),
        columns > 0);
  }
}

// Bytes of the probes of a window of query tiles.
constexpr size_t vector_bytes(size_t num_q_tiles, size_t per_tile) {
  return 32 * num_q_tiles * per_tile * 128 * sizeof(BFloat16);
}

// Four probes a tile: .5 MiB of records a query tile at 128K tokens, so windows of 128 tiles.
TEST(Sampled, RecordsOfAWindowTake64MiB) {
  EXPECT_EQ(testing::window_bytes("sampled", {.column_tokens = 0}, 128 * 1024),
            (size_t{64} << 20) + vector_bytes(128, 4));
}

// 4 MiB of records a query tile at a million tokens, of which 64 MiB would hold 16.
TEST(Sampled, WindowsHave8192RowsWhereRecordsTakeMore) {
  EXPECT_EQ(testing::window_bytes("sampled", {.column_tokens = 0}),
            (size_t{256} << 20) + vector_bytes(64, 4));
}

// 16 MiB of records a query tile.
TEST(Sampled, RecordsOfAWindowTake512MiBAtMost) {
  EXPECT_EQ(testing::window_bytes("sampled", {.probe_rows = 16, .column_tokens = 0}),
            (size_t{512} << 20) + vector_bytes(32, 16));
}

// Whether the mask of query tile 5 names the tile of a distant key that one of its rows looks at.
bool finds_key_of(int32_t row) {
  // The tile itself and the heaviest one before it, by the scores of one row.
  const SparseOptions options =
      without_columns({.coverage = 0.5, .probe_rows = 1, .max_budget_tokens = 256});
  constexpr int32_t kKey = 300;
  PolicyRig rig(make_policies("sampled+full", options), 128);
  rig.plant({.pos = kKey}, row);  // four times the row's query outweighs all other keys
  rig.run(Phase::kPrefill, {{0, 0, 768}});
  const auto lists = rig.lists(Phase::kPrefill, {{0, 0, 768}});
  const auto& list = lists[static_cast<size_t>(row) * PolicyRig::kKvHeads];
  return std::binary_search(list.begin(), list.end(), kKey / kMaskTileTokens);
}

TEST(Sampled, FindsWhatItsProbeLooksAt) {
  const int32_t probe = probe_row(5, 0, 1);
  EXPECT_TRUE(finds_key_of(probe));
  // What other rows look at is found by chance only: the probe may like the key as well.
  int num_found = 0;
  for (int32_t i = 1; i <= 8; ++i) {
    num_found += finds_key_of(5 * kMaskTileTokens + (probe + 16 * i + 1) % kMaskTileTokens) ? 1 : 0;
  }
  EXPECT_LT(num_found, 8);
}

}  // namespace
}  // namespace sluice
