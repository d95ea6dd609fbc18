// Checks that every tile policy has: its masks are those of the double-precision references with
// the probes and the rule that its options mean, and do not depend on windows and runs.
//
// Used by the tests of single policies. Thread rule: host thread; CPU device only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attention/policy_rig.h"
#include "ops/reference/tile_selection.h"

namespace sluice::testing {

inline constexpr int32_t kTilePromptTokens = 900;  // seven tiles and 4 rows

// A rule with nothing that the options of `bare` leave out.
inline TileRule bare_rule(TileChoice choice) {
  return {.choice = choice, .sink_tokens = 0, .recent_tokens = 0, .tail_tokens = 0};
}

// Options under which the choice alone decides.
inline SparseOptions bare(SparseOptions options) {
  options.sink_tokens = options.recent_tokens = 0;
  options.threshold_tokens = options.tail_tokens = 0;
  return options;
}

inline uint32_t share_of_mass(double share) { return static_cast<uint32_t>(share * kMassOne); }

// A bare rule that covers this share of the mass.
inline TileRule coverage(double share) {
  TileRule rule = bare_rule(TileChoice::kCoverage);
  rule.share = share_of_mass(share);
  return rule;
}

inline std::vector<int32_t> words_of(const TileMask& mask) {
  const int32_t* first = mask.bits.data<int32_t>();
  return {first, first + mask.bits.num_elements()};
}

// Masks of the whole prompt and of a span in its middle.
inline void expect_masks(const std::string& policy, const SparseOptions& options,
                         const TileProbes& probes, const TileRule& rule) {
  PolicyRig rig(make_policies(policy + "+full", options), kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  const int32_t num_masks = options.shared_list ? 1 : PolicyRig::kKvHeads;
  for (const Span& span : {prompt, Span{0, 384, 300, kTilePromptTokens}}) {
    const ScoreTilesArgs args = rig.rows_and_keys(span, probes);
    const int32_t num_q_tiles = static_cast<int32_t>(mask_tiles_of(span.num_rows));
    const std::vector<int32_t> expected =
        reference::mask_words(reference::score_tiles(args),
                              {.num_q_heads = PolicyRig::kQueryHeads,
                               .num_kv_heads = num_masks,
                               .num_q_tiles = num_q_tiles,
                               .probes_per_tile = probes_per_tile(probes),
                               .num_kv_tiles = static_cast<int32_t>(mask_tiles_of(span.end_pos()))},
                              rule, span.first_pos / kMaskTileTokens, kTilePromptTokens);
    const TileMask mask = masked_in(rig.select(Phase::kPrefill, {span}))->mask;
    ASSERT_TRUE(mask.present());
    EXPECT_EQ(mask.first_q_tile, span.first_pos / kMaskTileTokens);
    EXPECT_EQ(words_of(mask), expected) << policy << ", rows from " << span.first_pos;
  }
}

// Windows of one, two and three tiles, runs of one and two blocks.
inline void expect_cuts_change_nothing(const std::string& policy, const SparseOptions& options) {
  PolicyRig rig(make_policies(policy + "+full", options), kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  const std::vector<int32_t> whole =
      words_of(masked_in(rig.select(Phase::kPrefill, {prompt}))->mask);
  for (const PolicyRig::Cuts& cuts :
       {PolicyRig::Cuts{128, 0}, {256, 0}, {384, 128}, {128, 256}, {0, 256}}) {
    const Selection selection = rig.select(Phase::kPrefill, {prompt}, PolicyRig::kLayers - 1, cuts);
    EXPECT_EQ(words_of(masked_in(selection)->mask), whole)
        << "windows of " << cuts.window_rows << ", runs of " << cuts.run_tokens;
  }
}

// Every option that all tile policies have, one by one. `options` and `rule` are the policy's bare
// choice.
inline void expect_rule_options(const std::string& policy, const SparseOptions& options,
                                const TileProbes& probes, const TileRule& rule) {
  const auto with = [&](auto change) {
    std::pair<SparseOptions, TileRule> changed(options, rule);
    change(changed.first, changed.second);
    expect_masks(policy, changed.first, probes, changed.second);
  };
  with([](SparseOptions& o, TileRule& r) { o.sink_tokens = r.sink_tokens = 129; });
  with([](SparseOptions& o, TileRule& r) { o.recent_tokens = r.recent_tokens = 129; });
  with([](SparseOptions& o, TileRule& r) { o.threshold_tokens = r.threshold_tokens = 500; });
  with([](SparseOptions& o, TileRule& r) { o.tail_tokens = r.tail_tokens = 5; });
  with([](SparseOptions& o, TileRule& r) { o.min_budget_tokens = 600, r.min_tiles = 5; });
  with([](SparseOptions& o, TileRule& r) { o.max_budget_tokens = 200, r.max_tiles = 2; });
  with([](SparseOptions& o, TileRule&) { o.shared_list = true; });
}

// The layers before sparse_dense_layers make no mask, and neither do passes before the threshold.
inline void expect_dense_where_asked(const std::string& policy, SparseOptions options) {
  options.dense_layers = 1;
  options.threshold_tokens = 300;
  PolicyRig rig(make_policies(policy + "+full", options), kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  EXPECT_FALSE(masked_in(rig.select(Phase::kPrefill, {prompt}, 0))) << "layer 0 is dense";
  EXPECT_TRUE(masked_in(rig.select(Phase::kPrefill, {prompt}, 1)));
  const Span first{0, 0, 384, kTilePromptTokens};
  EXPECT_FALSE(masked_in(rig.select(Phase::kPrefill, {first}, 1))) << "before the threshold";
}

// Counts add up over selections, by layer.
inline void expect_counts(const std::string& policy, const SparseOptions& options) {
  PolicyRig rig(make_policies(policy + "+full", options), kMaskTileTokens);
  rig.run(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
  const auto counts = rig.policies().of(Phase::kPrefill).tile_scorer()->tile_counts();
  ASSERT_EQ(counts.size(), static_cast<size_t>(PolicyRig::kLayers));
  const int64_t visible = PolicyRig::kKvHeads * (1 + 8) * 8 / 2;
  for (const TileCounts& layer : counts) {
    EXPECT_EQ(layer.num_visible, visible);
    EXPECT_GE(layer.num_set, PolicyRig::kKvHeads * 8) << "the diagonal at least";
    EXPECT_LT(layer.num_set, visible);
  }
  const int64_t once = counts.back().num_set;
  rig.run(Phase::kPrefill, {{0, 0, kTilePromptTokens}});
  EXPECT_EQ(counts.back().num_set, 2 * once);
  EXPECT_EQ(counts.front().num_visible, 2 * visible);
}

// What `initialize` allocates is what `memory` says.
inline void expect_planned_memory(const std::string& policy, const SparseOptions& options) {
  const std::unique_ptr<Device> device = make_device("cpu");
  const std::unique_ptr<PolicyPair> policies = make_policies(policy + "+full", options);
  const KvLayout layout = PolicyRig::layout(kMaskTileTokens);
  const PolicyMemory memory = policies->memory(layout, 8, PolicyRig::limits());
  policies->initialize(*device, layout, 8, PolicyRig::limits());
  EXPECT_EQ(device->allocated_bytes(MemoryKind::kDevice), memory.summary_bytes + memory.list_bytes);
  EXPECT_EQ(device->allocated_bytes(MemoryKind::kPinned), memory.pinned_bytes);
}

// Device bytes beside the mask and the counts, for a model of 32 query heads and 8 KV heads of 128
// and prompts of a million tokens or another number, 16K rows at a time.
inline size_t window_bytes(const std::string& policy, const SparseOptions& options,
                           int64_t num_tokens = 1 << 20) {
  constexpr int64_t kRows = 16384;
  const KvLayout layout{.num_layers = 1,
                        .block = {.num_kv_heads = 8, .head_dim = 128, .block_tokens = 256}};
  const std::unique_ptr<PolicyPair> policies = make_policies(policy + "+full", options);
  const PolicyMemory memory = policies->memory(
      layout, 1, {.max_prefill_rows = kRows, .max_tokens = num_tokens, .num_q_heads = 32});
  constexpr size_t kCountBytes = 256;
  const auto mask_bytes = static_cast<size_t>(8 * (kRows / 128) * (num_tokens / 128) / 8);
  return memory.list_bytes - mask_bytes - kCountBytes;
}

// All of the above. `options` and `rule` are bare.
inline void expect_tile_policy(const std::string& policy, const SparseOptions& options,
                               const TileProbes& probes, const TileRule& rule) {
  expect_masks(policy, options, probes, rule);
  expect_rule_options(policy, options, probes, rule);
  expect_cuts_change_nothing(policy, options);
  expect_dense_where_asked(policy, options);
  expect_counts(policy, options);
  expect_planned_memory(policy, options);
}

}  // namespace sluice::testing
