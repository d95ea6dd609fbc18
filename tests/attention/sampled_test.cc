// sampled: masks of the references, its own options and defaults, and what probes can miss.
#include "attention/tile_policy_check.h"

namespace sluice {
namespace {

using testing::bare;
using testing::bare_rule;
using testing::expect_masks;
using testing::expect_tile_policy;
using testing::PolicyRig;
using testing::share_of_mass;

TileRule coverage(double share) {
  TileRule rule = bare_rule(TileChoice::kCoverage);
  rule.share = share_of_mass(share);
  return rule;
}

TEST(Sampled, MasksAreThoseOfTheReference) {
  expect_tile_policy("sampled", bare({.coverage = 0.5}), {.rows_per_tile = 4}, coverage(0.5));
}

TEST(Sampled, OwnOptions) {
  for (const int32_t rows : {1, 2, 8, 16}) {
    expect_masks("sampled", bare({.coverage = 0.6, .probe_rows = rows}), {.rows_per_tile = rows},
                 coverage(0.6));
  }
  TileRule rest = coverage(0.5);
  rest.is_share_of_rest = true;
  expect_masks("sampled", bare({.coverage = 0.5, .coverage_of = CoverageOf::kRest}), {}, rest);
  expect_masks("sampled", bare({.coverage = 0.5, .coverage_of = CoverageOf::kAll}), {},
               coverage(0.5));
}

TEST(Sampled, Defaults) {
  expect_masks("sampled", {.threshold_tokens = 128}, {.rows_per_tile = 4},
               {.share = share_of_mass(0.95),
                .sink_tokens = 128,
                .recent_tokens = 128,
                .threshold_tokens = 128,
                .tail_tokens = 128});
  PolicyRig rig(make_policies("sampled+full"), 128);
  EXPECT_TRUE(rig.rule(Phase::kPrefill).selects_all(4096));
  EXPECT_FALSE(rig.rule(Phase::kPrefill).selects_all(4097));
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_scope_tokens(), 128);
  EXPECT_EQ(rig.policies().of(Phase::kPrefill).prefill_tail_tokens(), 128);
}

// Whether the mask of query tile 5 names the tile of a distant key that one of its rows looks at.
bool finds_key_of(int32_t row) {
  // The tile itself and the heaviest one before it, by the scores of one row.
  const SparseOptions options = bare({.coverage = 0.5, .probe_rows = 1, .max_budget_tokens = 256});
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
