// xattention: masks of the references, its own options and defaults.
#include "attention/tile_policy_check.h"

namespace sluice {
namespace {

using testing::bare;
using testing::coverage;
using testing::expect_masks;
using testing::expect_tile_policy;
using testing::share_of_mass;

TileProbes antidiagonals(int32_t stride) {
  return {.kind = TileProbeKind::kAntidiagonal, .stride = stride};
}

TEST(XAttention, MasksAreThoseOfTheReference) {
  expect_tile_policy("xattention", bare({.coverage = 0.5}), antidiagonals(16), coverage(0.5));
}

TEST(XAttention, OwnOptions) {
  for (const int32_t stride : {4, 8, 32}) {
    expect_masks("xattention", bare({.coverage = 0.6, .stride = stride}), antidiagonals(stride),
                 coverage(0.6));
  }
  TileRule rest = coverage(0.5);
  rest.is_share_of_rest = true;
  expect_masks("xattention", bare({.coverage = 0.5, .coverage_of = CoverageOf::kRest}),
               antidiagonals(16), rest);
}

TEST(XAttention, Defaults) {
  expect_masks("xattention", {.threshold_tokens = 128}, antidiagonals(16),
               {.share = share_of_mass(0.9),
                .sink_tokens = 128,
                .recent_tokens = 128,
                .threshold_tokens = 128,
                .tail_tokens = 128});
}

}  // namespace
}  // namespace sluice
