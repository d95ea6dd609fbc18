// Quest: the page of a key that resembles the query is selected, per head and per layer, in the
// prompt and in decode; the reported memory of summaries and lists is exact.
#include "attention/policies/quest.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "attention/policy_rig.h"

namespace sluice {
namespace {

using testing::PageIds;
using testing::PolicyRig;
using testing::Span;

const SparseOptions kOptions{
    .topk_tokens = 32, .page_tokens = 16, .sink_tokens = 0, .recent_tokens = 0};
constexpr int32_t kPromptTokens = 400;

// Lists of the first decoded row, by KV head.
std::vector<PageIds> lists_of(PolicyRig& rig) {
  rig.run(Phase::kPrefill, {{0, 0, kPromptTokens}});
  rig.run(Phase::kDecode, {{0, kPromptTokens, 1}});
  return rig.lists(Phase::kDecode, {{0, kPromptTokens, 1}});
}

bool holds(const PageIds& list, int32_t page) {
  return std::binary_search(list.begin(), list.end(), page);
}

TEST(Quest, FindsThePageOfAKeyLikeTheQuery) {
  for (const int32_t key_pos : {0, 37, 208, 383}) {
    PolicyRig rig(make_policies("full+quest", kOptions));
    rig.plant({.kv_head = 1, .pos = key_pos}, kPromptTokens);
    EXPECT_TRUE(holds(lists_of(rig)[1], key_pos / 16)) << "position " << key_pos;
  }
}

TEST(Quest, HeadsChooseForThemselvesUnlessTheyShareAList) {
  PolicyRig apart(make_policies("full+quest", kOptions));
  apart.plant({.kv_head = 0, .pos = 40}, kPromptTokens);
  apart.plant({.kv_head = 1, .pos = 300}, kPromptTokens);
  const std::vector<PageIds> lists = lists_of(apart);
  EXPECT_TRUE(holds(lists[0], 40 / 16));
  EXPECT_TRUE(holds(lists[1], 300 / 16));
  EXPECT_NE(lists[0], lists[1]);

  SparseOptions options = kOptions;
  options.shared_list = true;
  PolicyRig shared(make_policies("full+quest", options));
  shared.plant({.kv_head = 0, .pos = 40}, kPromptTokens);
  shared.plant({.kv_head = 1, .pos = 300}, kPromptTokens);
  const std::vector<PageIds> both = lists_of(shared);
  EXPECT_EQ(both[0], both[1]);
  EXPECT_TRUE(holds(both[0], 40 / 16) && holds(both[0], 300 / 16)) << "the sum has both";
}

TEST(Quest, LayersKeepTheirOwnSummaries) {
  PolicyRig rig(make_policies("full+quest", kOptions));
  rig.plant({.layer = 0, .pos = 100}, kPromptTokens);
  rig.plant({.layer = 1, .pos = 250}, kPromptTokens);
  lists_of(rig);
  const std::vector<Span> row = {{0, kPromptTokens, 1}};
  for (const auto& [layer, pos] : {std::pair{0, 100}, std::pair{1, 250}}) {
    const PageIds list = rig.lists(Phase::kDecode, row, layer)[0];
    EXPECT_TRUE(holds(list, pos / 16)) << "layer " << layer;
  }
}

// Keys written by decode are summarised like those of the prompt.
TEST(Quest, FindsDecodedKeys) {
  PolicyRig rig(make_policies("full+quest", kOptions));
  rig.plant({.kv_head = 0, .pos = 210}, 270);
  rig.run(Phase::kPrefill, {{0, 0, 200}});
  for (int32_t pos = 200; pos <= 270; ++pos) rig.run(Phase::kDecode, {{0, pos, 1}});
  EXPECT_TRUE(holds(rig.lists(Phase::kDecode, {{0, 270, 1}})[0], 210 / 16));
}

TEST(Quest, SummariesTakeTheShareOfAPageAndListsNone) {
  const QuestPolicy quest(SparseOptions{.page_tokens = 32});
  const KvLayout layout = PolicyRig::layout();
  PolicyLimits limits{
      .max_seqs = PolicyRig::kSeqs, .max_rows = 1, .max_tokens = PolicyRig::kMaxTokens};
  const PolicyMemory memory = quest.memory(layout, 1024, limits);
  EXPECT_EQ(memory.summary_bytes, 1024 * layout.block_bytes_all_layers() / 32);
  limits.counts_reads = true;
  const size_t counts =
      1024 * sizeof(int32_t) * static_cast<size_t>(layout.block.block_tokens / 32);
  EXPECT_EQ(quest.memory(layout, 1024, limits).summary_bytes, memory.summary_bytes + counts);
  EXPECT_EQ(quest.memory(layout, 0, limits).summary_bytes, 0u);
  EXPECT_EQ(quest.memory(layout, 0, limits).list_bytes, memory.list_bytes);
}

}  // namespace
}  // namespace sluice
