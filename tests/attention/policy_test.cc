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

TEST_F(PolicyTest, FullSelectsEverythingInBothPhases) {
  const std::unique_ptr<Policy> full = make_policy("full");
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    EXPECT_FALSE(full->select_blocks(*stream_, {.phase = phase}).pages.page_ids.present());
  }
}

}  // namespace
}  // namespace sluice
