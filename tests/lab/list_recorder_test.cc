// A ListRecorder keeps exactly the lists of the policy that it wraps, and changes no result.
#include "lab/lists/list_recorder.h"

#include <gtest/gtest.h>

#include "attention/policy_rig.h"

namespace sluice::lab {
namespace {

using sluice::testing::PageIds;
using sluice::testing::PolicyRig;
using sluice::testing::Span;

const SparseOptions kOptions{
    .topk_tokens = 48, .page_tokens = 16, .sink_tokens = 16, .recent_tokens = 16};
const std::vector<Span> kPrompts = {{0, 0, 400}, {1, 0, 90}};
const std::vector<Span> kStep = {{0, 400, 1}, {1, 90, 1}};

class ListRecorderTest : public ::testing::Test {
 protected:
  std::unique_ptr<PolicyPair> policies_ = make_policies("full+quest", kOptions);
  ListRecorder& recorder_ = record_lists(*policies_);
  PolicyRig rig_{std::move(policies_)};
};

TEST_F(ListRecorderTest, KeepsTheListsOfEveryLayerSequenceAndHead) {
  rig_.run(Phase::kPrefill, kPrompts);
  rig_.run(Phase::kDecode, kStep);
  ASSERT_EQ(recorder_.num_heads(), PolicyRig::kKvHeads);
  for (int32_t layer = 0; layer < PolicyRig::kLayers; ++layer) {
    // Read first: rig_.lists calls the policy again, which records again.
    std::vector<PageIds> kept;
    for (int64_t seq = 0; seq < 2; ++seq) {
      for (int64_t head = 0; head < PolicyRig::kKvHeads; ++head) {
        kept.push_back(recorder_.pages(LayerId(layer), seq, head));
      }
    }
    EXPECT_EQ(kept, rig_.lists(Phase::kDecode, kStep, layer)) << "layer " << layer;
    EXPECT_EQ(kept[0].size(), 1u + 2 + 3) << "sink, window, top-k";
  }
}

TEST_F(ListRecorderTest, KeepsTheNewestStepAndNoPrefill) {
  rig_.run(Phase::kPrefill, kPrompts);
  rig_.run(Phase::kDecode, {{1, 90, 1}});
  const std::vector<int32_t> first = recorder_.pages(LayerId(0), 0, 0);
  rig_.run(Phase::kPrefill, {{2, 0, 40}});
  EXPECT_EQ(recorder_.pages(LayerId(0), 0, 0), first);
  rig_.run(Phase::kDecode, kStep);
  EXPECT_EQ(recorder_.pages(LayerId(0), 0, 0).back(), 400 / 16);
  EXPECT_EQ(recorder_.pages(LayerId(0), 1, 0), first);
}

TEST_F(ListRecorderTest, ChangesNoBit) {
  PolicyRig bare(make_policies("full+quest", kOptions));
  bare.run(Phase::kPrefill, kPrompts);
  rig_.run(Phase::kPrefill, kPrompts);
  const auto a = bare.run(Phase::kDecode, kStep);
  const auto b = rig_.run(Phase::kDecode, kStep);
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])), 0);
}

}  // namespace
}  // namespace sluice::lab
