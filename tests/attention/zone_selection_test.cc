// Prefill policies where queries differ by zones of keys: queries that are twice and four times as
// large for earlier chunks choose what plain queries choose of keys that are.
//
// Reveals: a probe, a line or a column that is scored with the queries of another zone. Products by
// powers of two are exact, so selections are equal; columns are walked by zones, so outputs are
// close.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/column_check.h"

namespace sluice {
namespace {

using testing::all_columns;
using testing::bare;
using testing::PolicyRig;
using testing::RigZones;
using testing::Span;
using testing::words_of;

constexpr int32_t kChunkTokens = 256;

SparseOptions options_of(const std::string& policy) {
  SparseOptions options = bare({});
  if (policy == "avgpool" || policy == "xattention" || policy == "sampled") {
    options.coverage = 0.5;
    if (policy == "sampled") options.column_tokens = 0;
    return options;
  }
  options.segment_tokens = kMaskTileTokens;
  options.vertical_tokens = 24;
  if (policy == "minference") options.slash_tokens = 3 * kMaskTileTokens;
  if (policy == "flexprefill") {
    options.coverage = 0.5;
    options.min_budget_tokens = kMaskTileTokens;
    options.divergence = 0.3;
  }
  return options;
}

struct Chosen {
  std::vector<int32_t> words;
  std::vector<std::vector<int32_t>> columns;
  std::vector<BFloat16> out;
};

// Rows of the chunk that `span` lies in.
Chosen choose(const std::string& policy, const SparseOptions& options, const Span& span,
              RigZones zones) {
  PolicyRig rig(make_policies(policy + "+full", options), kMaskTileTokens, PolicyRig::kMaxTokens,
                {}, zones);
  Chosen chosen;
  rig.run(Phase::kPrefill, {{0, 0, span.first_pos, span.end_pos()}});
  chosen.out = rig.run(Phase::kPrefill, {span});
  const Selection selection = rig.selected(span);
  const MaskedTiles* tiles = masked_in(selection);
  EXPECT_NE(tiles, nullptr) << policy;
  if (tiles == nullptr) return chosen;
  chosen.words = words_of(tiles->mask);
  if (tiles->columns.present()) chosen.columns = all_columns(tiles->columns);
  return chosen;
}

void expect_alike(const std::string& policy, const SparseOptions& options) {
  for (const int32_t first : {256, 512, 640}) {
    SCOPED_TRACE(policy + " from " + std::to_string(first));
    const int32_t chunk = first / kChunkTokens;
    const Span span{0, first, (chunk + 1) * kChunkTokens - first - 20, 1000};
    const Chosen zones = choose(policy, options, span, {.chunk_tokens = kChunkTokens});
    const Chosen keys =
        choose(policy, options, span, {.chunk_tokens = kChunkTokens, .own_chunk = chunk});
    const Chosen plain = choose(policy, options, span, {});
    EXPECT_EQ(zones.words, keys.words);
    EXPECT_EQ(zones.columns, keys.columns);
    EXPECT_TRUE(plain.words != keys.words || plain.columns != keys.columns)
        << "the factors change nothing";
    ASSERT_EQ(zones.out.size(), keys.out.size());
    for (size_t i = 0; i < keys.out.size(); ++i) {
      const float expected = static_cast<float>(keys.out[i]);
      ASSERT_NEAR(static_cast<float>(zones.out[i]), expected, 2 * PolicyRig::output_bound(expected))
          << i;
    }
  }
}

TEST(ZoneSelection, IsThatOfLargerKeys) {
  for (const char* policy : {"xattention", "avgpool", "sampled", "minference", "flexprefill"}) {
    expect_alike(policy, options_of(policy));
  }
}

TEST(ZoneSelection, OfHeadsOfSeveralKinds) {
  SparseOptions options = bare({});
  options.profile = testing::mixed_profile();
  options.segment_tokens = kMaskTileTokens;
  expect_alike("minference", options);
}

TEST(ZoneSelection, OfAdaptiveBudgets) {
  SparseOptions options = bare({});
  options.segment_tokens = kMaskTileTokens;
  options.adaptive_budget = 0.3;
  expect_alike("minference", options);
}

}  // namespace
}  // namespace sluice
