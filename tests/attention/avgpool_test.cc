// avgpool: masks of the references for its three choices, its pools and defaults.
#include "attention/tile_policy_check.h"

namespace sluice {
namespace {

using testing::bare;
using testing::bare_rule;
using testing::expect_masks;
using testing::expect_tile_policy;
using testing::share_of_mass;

TileRule top(int32_t tiles) {
  TileRule rule = bare_rule(TileChoice::kTop);
  rule.top_tiles = tiles;
  return rule;
}

TileProbes pools(int32_t keys, int32_t rows) {
  return {.kind = TileProbeKind::kPooled, .key_pool_tokens = keys, .query_pool_tokens = rows};
}

TEST(AvgPool, MasksAreThoseOfTheReference) {
  expect_tile_policy("avgpool", bare({.topk_tokens = 256}), pools(16, 128), top(2));
}

TEST(AvgPool, OwnOptions) {
  for (const auto& [keys, rows] : {std::pair(8, 16), std::pair(128, 1), std::pair(64, 128)}) {
    expect_masks("avgpool",
                 bare({.topk_tokens = 129, .pool_tokens = keys, .query_pool_tokens = rows}),
                 pools(keys, rows), top(2));
  }
  TileProbes maxima = pools(16, 128);
  maxima.pools_maxima = true;
  expect_masks("avgpool", bare({.topk_tokens = 128, .pool = TilePool::kMax}), maxima, top(1));
}

TEST(AvgPool, OtherChoices) {
  TileRule coverage = bare_rule(TileChoice::kCoverage);
  coverage.share = share_of_mass(0.7);
  expect_masks("avgpool", bare({.coverage = 0.7}), pools(16, 128), coverage);
  coverage.is_share_of_rest = true;
  expect_masks("avgpool", bare({.coverage = 0.7, .coverage_of = CoverageOf::kRest}), pools(16, 128),
               coverage);
  TileRule alpha = bare_rule(TileChoice::kAlpha);
  alpha.share = share_of_mass(0.99);
  expect_masks("avgpool", bare({.alpha = 0.99}), pools(128, 1), alpha);
  expect_masks("avgpool", bare({.alpha = 0.99, .pool_tokens = 16, .query_pool_tokens = 16}),
               pools(16, 16), alpha);
}

// Every row is a probe: 128 MiB of records a query tile, and windows are not below 512 rows.
TEST(AvgPool, WindowsHaveAtLeast512Rows) {
  const size_t vectors = size_t{32} * 512 * 128 * sizeof(BFloat16);
  EXPECT_EQ(testing::window_bytes("avgpool", {.query_pool_tokens = 1}),
            (size_t{512} << 20) + vectors);
}

TEST(AvgPool, Defaults) {
  testing::PolicyRig rig(make_policies("avgpool+full"), 128);
  EXPECT_TRUE(rig.rule(Phase::kPrefill).selects_all(8192)) << "64 tiles";
  EXPECT_FALSE(rig.rule(Phase::kPrefill).selects_all(8193));
}

}  // namespace
}  // namespace sluice
