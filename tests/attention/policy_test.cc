// Which functions of a policy the executor calls, and when.
#include <gtest/gtest.h>

#include "attention/executor.h"
#include "attention/policy_pair.h"
#include "device/device.h"

namespace sluice {
namespace {

class PolicyTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_device("cpu");
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "compute"});
};

// Selects everything in sequences of up to 100 tokens.
class LongListsPolicy final : public Policy {
 public:
  LongListsPolicy(Phase phase, int* num_selections)
      : Policy("toy", phase), num_selections_(num_selections) {}
  SelectionRule rule(const KvBlockShape&) const override {
    return {.form = SelectionForm::kPageLists,
            .page_rule = {.threshold_tokens = 100},
            .page_tokens = 100};
  }
  Selection select(Stream&, const SelectInput&) override {
    ++*num_selections_;
    return {};
  }

 private:
  int* num_selections_;
};

class WalkCounter final : public Executor {
 public:
  WalkCounter(PolicyPair& policies, bool needs_lists)
      : Executor(policies, {}), needs_lists_(needs_lists) {}
  KvBlocksView write_target(const AttentionPass&, LayerId) override { return {}; }
  int num_walks = 0;

 private:
  KvBlocksView written(const AttentionPass&, LayerId) const override { return {}; }
  bool needs_lists() const override { return needs_lists_; }
  void walk(Stream&, const AttentionPass&, const PassPart&, const LayerInput&,
            const Selection&) override {
    ++num_walks;
  }
  bool needs_lists_;
};

TEST_F(PolicyTest, ListsOfEverythingAreNotMadeUnlessTheWalkNeedsThem) {
  const Buffer memory = device_->allocate(64, MemoryKind::kDevice);
  const TensorView numbers(memory.data(), DType::kI32, {4});
  AttentionPass pass;
  pass.kv_begin = pass.kv_end = numbers.rows(0, 2);
  pass.batch.row_begin = numbers;
  pass.batch.first_pos = numbers;
  pass.block_table = pass.block_ids = numbers.reshape({2, 2});
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (const bool needs_lists : {false, true}) {
      for (const int32_t num_tokens : {100, 101}) {
        int num_prefill = 0, num_decode = 0;
        PolicyPair policies("toy", std::make_unique<LongListsPolicy>(Phase::kPrefill, &num_prefill),
                            std::make_unique<LongListsPolicy>(Phase::kDecode, &num_decode));
        WalkCounter executor(policies, needs_lists);
        pass.phase = phase;
        pass.batch.max_kv_tokens = num_tokens;
        executor.attend(*stream_, pass, {});
        const bool makes_lists = needs_lists || num_tokens == 101;
        const int num_parts = makes_lists && phase == Phase::kPrefill ? 2 : 1;
        const bool is_prefill = phase == Phase::kPrefill;
        EXPECT_EQ(is_prefill ? num_prefill : num_decode, makes_lists ? num_parts : 0);
        EXPECT_EQ(is_prefill ? num_decode : num_prefill, 0) << "the other phase's policy";
        EXPECT_EQ(executor.num_walks, num_parts);
      }
    }
  }
}

TEST_F(PolicyTest, FullSelectsEverythingInBothPhases) {
  const std::unique_ptr<PolicyPair> full = make_policies("full");
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Selection selection = full->of(phase).select(*stream_, {});
    EXPECT_FALSE(selection.pages.present() || selection.mask.present());
  }
}

}  // namespace
}  // namespace sluice
