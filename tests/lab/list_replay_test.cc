// A ListReplay gives attention the recorded lists between the rule's sinks and recent pages, and is
// otherwise the policy that it wraps.
#include "lab/lists/list_replay.h"

#include <gtest/gtest.h>

#include "attention/policy_rig.h"
#include "core/error.h"
#include "lab/recorded_lists_maker.h"

namespace sluice::lab {
namespace {

using sluice::testing::PageIds;
using sluice::testing::PolicyRig;
using sluice::testing::Span;

constexpr int32_t kFirst = 640;  // position of the first decode step
constexpr int32_t kSteps = 30;   // more than there are recorded ones

SparseOptions quest_options() {
  return {.topk_tokens = 64, .page_tokens = 16, .sink_tokens = 16, .recent_tokens = 16};
}

std::unique_ptr<PolicyPair> replay_of(const RecordedLists& lists,
                                      const SparseOptions& options = quest_options()) {
  std::unique_ptr<PolicyPair> policies = make_policies("full+quest", options);
  replay_lists(*policies, lists, kFirst);
  return policies;
}

ReplayTarget target_of(const PolicyRig& rig, int32_t num_heads = PolicyRig::kKvHeads) {
  return {.num_layers = PolicyRig::kLayers,
          .num_heads = num_heads,
          .rule = rig.rule(Phase::kDecode),
          .first_pos = kFirst};
}

// The list of the step at `pos`: sinks and recent pages by the rule, and `chosen` between them.
PageIds whole_list(int32_t pos, const PageIds& chosen) {
  PageIds list = {0};
  list.insert(list.end(), chosen.begin(), chosen.end());
  for (int32_t page = (pos - 16) / 16; page <= pos / 16; ++page) list.push_back(page);
  return list;
}

TEST(ListReplay, ListsAreTheRecordedOnesBetweenSinksAndRecentPages) {
  const RecordedLists lists = make_lists(1, 1);
  PolicyRig rig(replay_of(lists));
  rig.run(Phase::kPrefill, {{0, 0, kFirst}});
  for (int32_t pos = kFirst; pos < kFirst + kSteps; ++pos) {
    rig.run(Phase::kDecode, {{0, pos, 1}});
    for (int32_t layer = 0; layer < PolicyRig::kLayers; ++layer) {
      const std::vector<int32_t> table = replayed_lists(lists, target_of(rig), layer);
      std::vector<PageIds> expected;
      for (int32_t head = 0; head < PolicyRig::kKvHeads; ++head) {
        const int32_t index = head * lists.num_steps + (pos - kFirst) % lists.num_steps;
        expected.push_back(
            whole_list(pos, {table.begin() + index * 4, table.begin() + index * 4 + 4}));
      }
      ASSERT_EQ(rig.lists(Phase::kDecode, {{0, pos, 1}}, layer), expected)
          << "layer " << layer << ", position " << pos;
    }
  }
}

TEST(ListReplay, AttentionReadsWhatTheListsSay) {
  const RecordedLists lists = make_lists();
  PolicyRig rig(replay_of(lists));
  rig.run(Phase::kPrefill, {{0, 0, kFirst}});
  for (int32_t pos = kFirst; pos < kFirst + kSteps; ++pos) {
    const std::vector<BFloat16> out = rig.run(Phase::kDecode, {{0, pos, 1}});
    const std::vector<double> expected = rig.expected_output({{0, pos, 1}}, Phase::kDecode);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(static_cast<float>(out[i]), expected[i], PolicyRig::output_bound(expected[i]))
          << "position " << pos;
    }
  }
}

// A neighbour at another step, one before the first position, and one too short for lists.
TEST(ListReplay, NeighboursDoNotMatterAndEarlierRowsAreQuests) {
  const RecordedLists lists = make_lists();
  const std::vector<Span> prompts = {{0, 0, kFirst}, {1, 0, 500}, {2, 0, 40}};
  const std::vector<Span> step = {{0, kFirst, 1}, {1, 500, 1}, {2, 40, 1}};
  PolicyRig together(replay_of(lists));
  PolicyRig quest(make_policies("full+quest", quest_options()));
  together.run(Phase::kPrefill, prompts);
  quest.run(Phase::kPrefill, prompts);
  together.run(Phase::kDecode, step);
  quest.run(Phase::kDecode, step);
  const std::vector<PageIds> replayed = together.lists(Phase::kDecode, step);
  const std::vector<PageIds> chosen = quest.lists(Phase::kDecode, step);
  ASSERT_EQ(replayed.size(), 6u);
  EXPECT_NE(replayed[0], chosen[0]);
  EXPECT_EQ((std::vector<PageIds>{replayed.begin() + 2, replayed.end()}),
            (std::vector<PageIds>{chosen.begin() + 2, chosen.end()}));
  PolicyRig alone(replay_of(lists));
  alone.run(Phase::kPrefill, {prompts[0]});
  alone.run(Phase::kDecode, {step[0]});
  EXPECT_EQ(alone.lists(Phase::kDecode, {step[0]}),
            (std::vector<PageIds>{replayed.begin(), replayed.begin() + 2}));
  // A pass of short sequences alone, whose lists have no room for the recorded ones.
  PolicyRig brief(replay_of(lists));
  brief.run(Phase::kPrefill, {prompts[2]});
  brief.run(Phase::kDecode, {step[2]});
  EXPECT_EQ(brief.lists(Phase::kDecode, {step[2]}),
            (std::vector<PageIds>{replayed.begin() + 4, replayed.end()}));
}

TEST(ListReplay, ASharedListIsThatOfTheFirstHead) {
  const RecordedLists lists = make_lists();
  SparseOptions options = quest_options();
  options.shared_list = true;
  PolicyRig rig(replay_of(lists, options));
  rig.run(Phase::kPrefill, {{0, 0, kFirst}});
  rig.run(Phase::kDecode, {{0, kFirst, 1}});
  const std::vector<int32_t> table = replayed_lists(lists, target_of(rig), 1);
  const PageIds expected = whole_list(kFirst, {table.begin(), table.begin() + 4});
  EXPECT_EQ(rig.lists(Phase::kDecode, {{0, kFirst, 1}}, 1),
            (std::vector<PageIds>{expected, expected}));
}

TEST(ListReplay, ItsMemoryIsThatOfThePolicyAndTheLists) {
  const RecordedLists lists = make_lists();
  const KvLayout layout = PolicyRig::layout();
  const PolicyMemory quest =
      make_policies("full+quest", quest_options())->memory(layout, 8, PolicyRig::limits());
  const PolicyMemory replay = replay_of(lists)->memory(layout, 8, PolicyRig::limits());
  EXPECT_EQ(replay.summary_bytes, quest.summary_bytes);
  EXPECT_EQ(replay.list_bytes, quest.list_bytes + 2u * 2 * 12 * 4 * sizeof(int32_t));
}

TEST(ListReplay, AnotherBudgetIsRefusedBeforeAnythingIsLoaded) {
  const RecordedLists lists = make_lists();
  SparseOptions options = quest_options();
  options.topk_tokens = 128;
  const auto policies = replay_of(lists, options);
  EXPECT_THROW(policies->rule(Phase::kDecode, PolicyRig::layout().block), Error);
  EXPECT_TRUE(replay_of(lists)->of(Phase::kDecode).capturable());
}

}  // namespace
}  // namespace sluice::lab
