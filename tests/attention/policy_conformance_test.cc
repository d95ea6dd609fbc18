// The contract of a policy, tested for every policy with the same code: lists are sorted, causal
// and within the budget; selections do not depend on other sequences, on batch neighbours or on how
// a prompt is cut; a budget that covers everything gives full attention; the output is attention
// over the selection.
//
// A new policy gets a line in kCases.
#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "attention/policies/avgpool.h"
#include "attention/policies/flexprefill.h"
#include "attention/policies/minference.h"
#include "attention/policies/quest.h"
#include "attention/policies/sampled.h"
#include "attention/policies/xattention.h"
#include "attention/policy_rig.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

using testing::mixed_profile;
using testing::PageIds;
using testing::PolicyRig;
using testing::Span;

constexpr int32_t kPage = 16, kSinkPages = 2, kRecentTokens = 40;

struct PolicyCase {
  const char* label;
  const char* name;
  SparseOptions options;
  // The most pages in a list, including the newest one.
  int32_t max_pages;
  int32_t block_tokens = PolicyRig::kBlockTokens;
};

// Everything that the rule of tiles adds by itself is 0, so that masks are as sparse as can be.
SparseOptions tiles(SparseOptions options) {
  options.sink_tokens = options.recent_tokens = 0;
  options.threshold_tokens = options.tail_tokens = 0;
  return options;
}

// Recent tokens touch at most four pages, including the newest one.
const PolicyCase kCases[] = {
    {"full", "full", {}, PolicyRig::kMaxTokens / kPage},
    {"quest",
     "full+quest",
     {.topk_tokens = 48, .page_tokens = 16, .sink_tokens = 20, .recent_tokens = kRecentTokens},
     kSinkPages + 4 + 3},
    {"quest_shared",
     "full+quest",
     {.topk_tokens = 48,
      .page_tokens = 16,
      .sink_tokens = 20,
      .recent_tokens = kRecentTokens,
      .shared_list = true},
     kSinkPages + 4 + 3},
    {"streaming",
     "streaming",
     {.page_tokens = 16, .sink_tokens = 20, .recent_tokens = kRecentTokens},
     kSinkPages + 4},
    {"streaming_quest",
     "streaming+quest",
     {.topk_tokens = 48, .page_tokens = 16, .sink_tokens = 20, .recent_tokens = kRecentTokens},
     kSinkPages + 4 + 3},
    {"sampled", "sampled+full", tiles({.coverage = 0.4, .column_tokens = 0}), 0, 128},
    {"sampled_columns", "sampled+full", tiles({.coverage = 0.4, .column_tokens = 50}), 0, 128},
    {"sampled_columns_shared", "sampled+full",
     tiles({.shared_list = true, .coverage = 0.4, .column_tokens = 200}), 0, 256},
    {"sampled_two_stages", "sampled+full",
     tiles({.coverage = 0.7, .two_stage_tokens = 256, .column_tokens = 0}), 0, 128},
    {"sampled_two_stages_columns", "sampled+full",
     tiles({.shared_list = true, .coverage = 0.7, .two_stage_tokens = 300, .column_tokens = 50}), 0,
     128},
    {"minference", "minference+full",
     tiles({.segment_tokens = 256, .vertical_tokens = 30, .slash_tokens = 256}), 0, 128},
    {"minference_shared", "minference+full",
     tiles(
         {.shared_list = true, .segment_tokens = 384, .vertical_tokens = 150, .slash_tokens = 384}),
     0, 128},
    {"minference_adaptive", "minference+full",
     tiles({.segment_tokens = 256, .adaptive_budget = 0.3}), 0, 128},
    {"minference_profile", "minference+full",
     tiles({.segment_tokens = 256, .profile = mixed_profile()}), 0, 128},
    {"minference_whole_prompt", "minference+full",
     tiles({.segment_tokens = 0, .vertical_tokens = 30, .slash_tokens = 256}), 0, 128},
    {"flexprefill_lines", "flexprefill+full",
     tiles({.coverage = 0.4,
            .min_budget_tokens = 0,
            .segment_tokens = 256,
            .vertical_tokens = 30,
            .divergence = 0.0}),
     0, 128},
    {"flexprefill_mixed", "flexprefill+full",
     tiles({.coverage = 0.4,
            .min_budget_tokens = 0,
            .segment_tokens = 384,
            .vertical_tokens = 150,
            .divergence = 0.09}),
     0, 128},
    {"flexprefill_shared", "flexprefill+full",
     tiles({.shared_list = true,
            .coverage = 0.4,
            .min_budget_tokens = 256,
            .segment_tokens = 384,
            .divergence = 0.09}),
     0, 128},
    {"flexprefill_whole_prompt", "flexprefill+full",
     tiles({.coverage = 0.4,
            .min_budget_tokens = 0,
            .segment_tokens = 0,
            .vertical_tokens = 30,
            .divergence = 0.09}),
     0, 128},
    {"xattention", "xattention+full", tiles({.coverage = 0.4}), 0, 128},
    {"avgpool", "avgpool+full", tiles({.topk_tokens = 128}), 0, 256},
    {"avgpool_alpha", "avgpool+full", tiles({.shared_list = true, .alpha = 0.995}), 0, 128},
    {"sampled_quest",
     "sampled+quest",
     {.topk_tokens = 48,
      .page_tokens = 16,
      .sink_tokens = 20,
      .recent_tokens = kRecentTokens,
      .threshold_tokens = 0,
      .coverage = 0.4,
      .tail_tokens = 0},
     kSinkPages + 4 + 3,
     128},
};

// The same policy with a budget that covers every sequence of the rig.
SparseOptions covering(SparseOptions options) {
  if (options.recent_tokens > 0) options.recent_tokens = PolicyRig::kMaxTokens;
  if (options.coverage) options.coverage = 1;
  if (options.topk_tokens) options.topk_tokens = PolicyRig::kMaxTokens;
  if (options.slash_tokens) options.slash_tokens = PolicyRig::kMaxTokens;
  if (options.adaptive_budget || options.profile) options.recent_tokens = PolicyRig::kMaxTokens;
  if (options.alpha) options.min_budget_tokens = PolicyRig::kMaxTokens;
  return options;
}

bool same_bits(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(BFloat16)) == 0;
}

// Prompts of all sequences: partial last pages and blocks, and one that ends with a block.
constexpr int32_t kLongest = 700;
const std::vector<Span> kPrompts = {{0, 0, kLongest}, {1, 0, 41}, {2, 0, 192}};
constexpr int32_t kDecodeSteps = 70;  // more than a block

std::vector<Span> decode_step(int32_t step) {
  std::vector<Span> rows;
  for (const Span& prompt : kPrompts) rows.push_back({prompt.seq, prompt.num_rows + step, 1});
  return rows;
}

class PolicyConformance : public ::testing::TestWithParam<PolicyCase> {
 protected:
  PolicyRig make_rig() const { return make_rig(GetParam().options); }
  PolicyRig make_rig(const SparseOptions& options) const {
    return PolicyRig(make_policies(GetParam().name, options), GetParam().block_tokens);
  }

  void expect_good_list(const PolicyRig& rig, const PageIds& list, int32_t pos) {
    const int32_t page = pos / rig.page_tokens();
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
    EXPECT_EQ(std::adjacent_find(list.begin(), list.end()), list.end()) << "twice in a list";
    ASSERT_FALSE(list.empty());
    EXPECT_GE(list.front(), 0);
    EXPECT_EQ(list.back(), page) << "the newest page, and none after it";
    EXPECT_LE(static_cast<int32_t>(list.size()), GetParam().max_pages);
    const auto holds = [&](int32_t p) { return std::binary_search(list.begin(), list.end(), p); };
    for (int32_t p = 0; p < std::min(kSinkPages, page + 1); ++p) EXPECT_TRUE(holds(p)) << p;
    const int32_t first_recent = std::max(0, page * kPage - kRecentTokens) / kPage;
    for (int32_t p = first_recent + 1; p < page; ++p) EXPECT_TRUE(holds(p)) << p;
  }

  void expect_counted(PolicyRig& rig, Phase phase, const PageIds& list, int32_t pos) {
    const std::optional<int64_t> counted = rig.rule(phase).num_selected_tokens(pos);
    const int32_t page_tokens = rig.page_tokens();
    EXPECT_LE(std::ssize(list) * page_tokens, rig.rule(phase).max_selected_tokens(pos + 1));
    if (!counted) return;
    EXPECT_EQ(*counted, std::ssize(list) * page_tokens - (page_tokens - 1 - pos % page_tokens));
  }
};

TEST_P(PolicyConformance, ListsAreSortedCausalAndWithinTheBudget) {
  PolicyRig rig = make_rig();
  rig.run(Phase::kPrefill, kPrompts);
  if (rig.rule(Phase::kPrefill).makes_page_lists()) {
    for (const Span& span : kPrompts) {
      const std::vector<PageIds> lists = rig.lists(Phase::kPrefill, {span});
      for (size_t i = 0; i < lists.size(); ++i) {
        const auto pos = static_cast<int32_t>(i / PolicyRig::kKvHeads);
        expect_good_list(rig, lists[i], pos);
        expect_counted(rig, Phase::kPrefill, lists[i], pos);
      }
    }
  }
  if (!rig.rule(Phase::kDecode).makes_page_lists()) return;
  for (int32_t step = 0; step < kDecodeSteps; ++step) {
    rig.run(Phase::kDecode, decode_step(step));
    const std::vector<PageIds> lists = rig.lists(Phase::kDecode, decode_step(step));
    for (size_t i = 0; i < lists.size(); ++i) {
      const Span row = decode_step(step)[i / PolicyRig::kKvHeads];
      expect_good_list(rig, lists[i], row.first_pos);
      expect_counted(rig, Phase::kDecode, lists[i], row.first_pos);
    }
  }
}

TEST_P(PolicyConformance, SelectsAllOnlyWhereEveryRowDoes) {
  PolicyRig rig = make_rig();
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const SelectionRule rule = rig.rule(phase);
    if (!rule.makes_page_lists()) continue;
    bool all_before = true;
    int64_t num_said = 0;
    for (int64_t num_tokens = 1; num_tokens <= 600; ++num_tokens) {
      const auto selected = rule.num_selected_tokens(num_tokens - 1);
      all_before = all_before && selected == num_tokens;
      if (!rule.selects_all(num_tokens)) continue;
      ++num_said;
      EXPECT_TRUE(all_before) << num_tokens;
    }
    EXPECT_LT(num_said, 600) << "the budgets here are smaller than that";
  }
}

TEST_P(PolicyConformance, NothingThatIsLeftOutWasListed) {
  PolicyRig rig = make_rig();
  if (!rig.rule(Phase::kPrefill).makes_page_lists()) return;
  rig.run(Phase::kPrefill, kPrompts);
  constexpr int32_t kFirst = 192;  // the first row whose lists are checked below
  const std::vector<PageIds> lists = rig.lists(Phase::kPrefill, {{0, kFirst, 108}});
  int num_left_out = 0;
  for (int32_t page = 0; page < kFirst / kPage; ++page) {
    const bool may = rig.rule(Phase::kPrefill).may_select(kFirst, page * kPage, (page + 1) * kPage);
    num_left_out += may ? 0 : 1;
    for (const PageIds& list : lists) {
      EXPECT_TRUE(may || !std::binary_search(list.begin(), list.end(), page)) << page;
    }
  }
  EXPECT_EQ(num_left_out, 12 - kSinkPages - 3) << "pages 2 to 8 are of no use to anyone";
}

TEST_P(PolicyConformance, SelectsTheSameEveryTimeAndAfterOtherSequences) {
  PolicyRig rig = make_rig();
  rig.run(Phase::kPrefill, kPrompts);
  const std::vector<BFloat16> once = rig.run(Phase::kDecode, decode_step(0));
  EXPECT_TRUE(same_bits(rig.run(Phase::kDecode, decode_step(0)), once));

  // Other sequences have used the same blocks before: their data must have no effect.
  PolicyRig used = make_rig();
  used.run(Phase::kPrefill, {{0, 0, 1024}, {1, 0, 1024}, {2, 0, 1024}});
  used.run(Phase::kPrefill, kPrompts);
  EXPECT_TRUE(same_bits(used.run(Phase::kDecode, decode_step(0)), once));
}

TEST_P(PolicyConformance, HowAPromptIsCutDoesNotMatter) {
  PolicyRig whole = make_rig();
  const std::vector<BFloat16> rows = whole.run(Phase::kPrefill, {{0, 0, kLongest}});
  const std::vector<BFloat16> next = whole.run(Phase::kDecode, {{0, kLongest, 1}});
  const int32_t scope = whole.policies().of(Phase::kPrefill).prefill_scope_tokens();
  for (const int32_t scopes : {1, 3, 64}) {
    const int32_t chunk = std::min(scope, PolicyRig::kMaxTokens) * scopes;
    PolicyRig cut = make_rig();
    std::vector<BFloat16> pieces;
    for (int32_t pos = 0; pos < kLongest; pos += chunk) {
      const std::vector<BFloat16> piece =
          cut.run(Phase::kPrefill, {{0, pos, std::min(chunk, kLongest - pos), kLongest}});
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_TRUE(same_bits(pieces, rows)) << "chunks of " << chunk;
    EXPECT_TRUE(same_bits(cut.run(Phase::kDecode, {{0, kLongest, 1}}), next));
  }
}

TEST_P(PolicyConformance, NeighboursDoNotMatter) {
  PolicyRig together = make_rig();
  together.run(Phase::kPrefill, kPrompts);
  const std::vector<BFloat16> all = together.run(Phase::kDecode, decode_step(0));
  const size_t row_size = all.size() / kPrompts.size();
  for (size_t i = 0; i < kPrompts.size(); ++i) {
    PolicyRig alone = make_rig();
    alone.run(Phase::kPrefill, {kPrompts[i]});
    const std::vector<BFloat16> row(all.begin() + static_cast<std::ptrdiff_t>(i * row_size),
                                    all.begin() + static_cast<std::ptrdiff_t>((i + 1) * row_size));
    EXPECT_TRUE(same_bits(alone.run(Phase::kDecode, {decode_step(0)[i]}), row)) << i;
  }
}

TEST_P(PolicyConformance, ABudgetThatCoversAllIsFullAttention) {
  PolicyRig full(make_policies("full"));
  PolicyRig covered = make_rig(covering(GetParam().options));
  SparseOptions high = GetParam().options;
  if (high.sink_tokens) high.threshold_tokens = PolicyRig::kMaxTokens;
  PolicyRig below_threshold = make_rig(high);
  const std::vector<BFloat16> prefilled = full.run(Phase::kPrefill, kPrompts);
  EXPECT_TRUE(same_bits(covered.run(Phase::kPrefill, kPrompts), prefilled));
  EXPECT_TRUE(same_bits(below_threshold.run(Phase::kPrefill, kPrompts), prefilled));
  for (int32_t step = 0; step < 20; ++step) {
    const std::vector<BFloat16> decoded = full.run(Phase::kDecode, decode_step(step));
    EXPECT_TRUE(same_bits(covered.run(Phase::kDecode, decode_step(step)), decoded)) << step;
    EXPECT_TRUE(same_bits(below_threshold.run(Phase::kDecode, decode_step(step)), decoded));
  }
}

// Against softmax over the listed tokens in double precision, written from the equation.
TEST_P(PolicyConformance, TheOutputIsAttentionOverTheLists) {
  PolicyRig rig = make_rig();
  rig.run(Phase::kPrefill, kPrompts);
  for (int32_t step = 0; step < 20; ++step) {
    const std::vector<BFloat16> out = rig.run(Phase::kDecode, decode_step(step));
    const std::vector<double> expected = rig.expected_output(decode_step(step), Phase::kDecode);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(static_cast<float>(out[i]), expected[i], PolicyRig::output_bound(expected[i]))
          << "step " << step;
    }
  }
  PolicyRig prefilling = make_rig();
  const Span prompt = kPrompts[0];
  const std::vector<BFloat16> out = prefilling.run(Phase::kPrefill, {prompt});
  const std::vector<double> expected = prefilling.expected_output({prompt}, Phase::kPrefill);
  if (prefilling.rule(Phase::kPrefill).selects()) {
    const PageIds last = prefilling.lists(Phase::kPrefill, {prompt}).back();
    EXPECT_LT(std::ssize(last) * prefilling.page_tokens(), kLongest - 128) << "nearly everything";
  }
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(static_cast<float>(out[i]), expected[i], PolicyRig::output_bound(expected[i]))
        << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PolicyConformance, ::testing::ValuesIn(kCases),
                         [](const auto& param_info) { return param_info.param.label; });

// Twice: by the pair, whatever it was made from, and by name.
template <typename P>
void expect_no_decode(const std::string& name) {
  const auto make = [] { return std::make_unique<P>(SparseOptions{}); };
  try {
    PolicyPair(name, make(), make());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.message(), "sparse policy '" + name +
                                   "' does not support decode, only prefill; use it for that phase "
                                   "and 'full' for decode");
  }
  for (const std::string& both : {name, "full+" + name}) {
    try {
      make_policies(both);
      FAIL() << "not refused: " << both;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(
          error.message().find(both == name ? "write '" + name + "+full'" : "write 'full+full'"),
          std::string::npos)
          << error.message();
    }
  }
}

TEST(PolicyPhases, TilePoliciesRefuseDecode) {
  expect_no_decode<FlexPrefillPolicy>("flexprefill");
  expect_no_decode<MInferencePolicy>("minference");
  expect_no_decode<SampledPolicy>("sampled");
  expect_no_decode<XAttentionPolicy>("xattention");
  expect_no_decode<AvgPoolPolicy>("avgpool");
}

TEST(PolicyPhases, AnUnsupportedPhaseIsRefused) {
  const auto quest = [] { return std::make_unique<QuestPolicy>(SparseOptions{}); };
  try {
    PolicyPair("quest", quest(), quest());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.message(),
              "sparse policy 'quest' does not support prefill, only decode; use it for that phase "
              "and 'full' for prefill");
  }
}

}  // namespace
}  // namespace sluice
