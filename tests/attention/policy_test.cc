// Phase flags are refused twice: by the executor for the caller, and by the policy itself.
#include "attention/policy.h"

#include <gtest/gtest.h>

#include "attention/resident_executor.h"
#include "device/device.h"

namespace sluice {
namespace {

// Selects everything, in prefill only.
class PrefillOnlyPolicy final : public Policy {
 public:
  std::string_view name() const override { return "toy"; }
  bool supports_prefill() const override { return true; }
  bool supports_decode() const override { return false; }
  bool makes_lists(Phase) const override { return false; }
  int num_selections = 0;

 private:
  Selection do_select_blocks(Stream&, const SelectInput&) override {
    ++num_selections;
    return {};
  }
};

class PolicyTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_device("cpu");
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "compute"});
  PrefillOnlyPolicy toy_;

  void expect_refused(const std::function<void()>& call) {
    try {
      call();
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_EQ(error.message(),
                "sparse policy 'toy' does not support decode, only prefill; use it for that phase "
                "and 'full' for decode");
    }
  }
};

TEST_F(PolicyTest, ThePolicyItselfRefusesAnUnsupportedPhase) {
  EXPECT_NO_THROW(toy_.select_blocks(*stream_, {.phase = Phase::kPrefill}));
  expect_refused([&] { toy_.select_blocks(*stream_, {.phase = Phase::kDecode}); });
  EXPECT_EQ(toy_.num_selections, 1);
}

TEST_F(PolicyTest, TheExecutorRefusesBeforeAskingThePolicy) {
  DevicePool pool(
      *device_, {.num_layers = 1, .block = {.num_kv_heads = 1, .head_dim = 16, .block_tokens = 16}},
      1);
  ResidentExecutor executor(toy_, pool);
  AttentionPass pass;
  pass.phase = Phase::kDecode;
  expect_refused([&] { executor.attend(*stream_, pass, {}); });
  EXPECT_EQ(toy_.num_selections, 0);
}

// Makes lists of sequences of more than 100 tokens.
class LongListsPolicy final : public Policy {
 public:
  std::string_view name() const override { return "toy"; }
  bool supports_prefill() const override { return true; }
  bool supports_decode() const override { return true; }
  bool makes_lists(Phase) const override { return true; }
  bool selects_all(Phase, int64_t num_tokens) const override { return num_tokens <= 100; }
  int num_selections = 0;

 private:
  Selection do_select_blocks(Stream&, const SelectInput&) override {
    ++num_selections;
    return {};
  }
};

class WalkCounter final : public Executor {
 public:
  WalkCounter(Policy& policy, bool needs_lists) : Executor(policy), needs_lists_(needs_lists) {}
  void begin_pass(const AttentionPass&) override {}
  KvBlocksView write_target(const AttentionPass&, int32_t) override { return {}; }
  bool capturable(bool) const override { return false; }
  int num_walks = 0;

 private:
  KvBlocksView written(const AttentionPass&, int32_t) const override { return {}; }
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
        LongListsPolicy policy;
        WalkCounter executor(policy, needs_lists);
        pass.phase = phase;
        pass.batch.max_kv_tokens = num_tokens;
        executor.attend(*stream_, pass, {});
        const bool makes_lists = needs_lists || num_tokens == 101;
        const int num_parts = makes_lists && phase == Phase::kPrefill ? 2 : 1;
        EXPECT_EQ(policy.num_selections, makes_lists ? num_parts : 0);
        EXPECT_EQ(executor.num_walks, num_parts);
      }
    }
  }
}

TEST_F(PolicyTest, FullSelectsEverythingInBothPhases) {
  const std::unique_ptr<Policy> full = make_policy("full");
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    EXPECT_FALSE(full->select_blocks(*stream_, {.phase = phase}).pages.page_ids.present());
  }
}

}  // namespace
}  // namespace sluice
