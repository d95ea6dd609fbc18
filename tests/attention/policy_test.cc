// Which functions of a policy the executor calls, and when.
#include <string>
#include <vector>

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

// Scores windows of 256 rows; writes down what it is asked to do.
class ScoringPolicy final : public Policy, public TileScorer {
 public:
  explicit ScoringPolicy(std::vector<std::string>* calls)
      : Policy("toy", Phase::kPrefill), calls_(calls) {}
  SelectionRule rule(const KvBlockShape&) const override {
    return {.form = SelectionForm::kTileMasks};
  }
  TileScorer* tile_scorer() override { return this; }
  int32_t window_rows(const SelectInput& input) const override {
    return input.layer.value == 0 ? 0 : 256;
  }
  void score(Stream&, const SelectInput& input, const TileRows& window, const KeyRun&) override {
    record("score", input, window);
  }
  void choose(Stream&, const SelectInput& input, const TileRows& window) override {
    record("choose", input, window);
  }
  Selection select(Stream&, const SelectInput& input) override {
    calls_->push_back("select " + std::to_string(input.span.prompt_end));
    return {};
  }

 private:
  void record(const std::string& what, const SelectInput& input, const TileRows& window) {
    calls_->push_back(what + " " + std::to_string(input.span.first_pos) + " " +
                      std::to_string(window.first) + "+" + std::to_string(window.count));
  }
  std::vector<std::string>* calls_;
};

class WalkCounter final : public Executor {
 public:
  WalkCounter(PolicyPair& policies, bool needs_lists)
      : Executor(policies, {}), needs_lists_(needs_lists) {}
  KvBlocksView write_target(const AttentionPass&, LayerId) override { return {}; }
  int num_walks = 0;
  int num_runs = 0;

 private:
  KvBlocksView written(const AttentionPass&, LayerId) const override { return {}; }
  bool needs_lists() const override { return needs_lists_; }
  void for_each_key_run(Stream&, const AttentionPass&, const PassPart&, const KeyWalk&,
                        const VisitKeys& visit) override {
    for (int i = 0; i < num_runs; ++i) visit({});
  }
  void walk(Stream&, const AttentionPass&, const PassPart&, const LayerInput&,
            const Selection&) override {
    ++num_walks;
  }
  bool needs_lists_;
};

// A pass of two sequences on the memory of a test; nothing reads its tables.
AttentionPass two_sequences(const TensorView& numbers) {
  AttentionPass pass;
  pass.kv_begin = pass.kv_end = numbers.rows(0, 2);
  pass.batch.row_begin = numbers;
  pass.batch.first_pos = numbers;
  pass.block_table = pass.block_ids = numbers.reshape({2, 2});
  return pass;
}

TEST_F(PolicyTest, ListsOfEverythingAreNotMadeUnlessTheWalkNeedsThem) {
  const Buffer memory = device_->allocate(64, MemoryKind::kDevice);
  const TensorView numbers(memory.data(), DType::kI32, {4});
  AttentionPass pass = two_sequences(numbers);
  const PrefillSpan spans[2] = {};
  pass.spans = spans;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (const bool needs_lists : {false, true}) {
      for (const int32_t num_tokens : {100, 101}) {
        int num_prefill = 0, num_decode = 0;
        PolicyPair policies("toy", std::make_unique<LongListsPolicy>(Phase::kPrefill, &num_prefill),
                            std::make_unique<LongListsPolicy>(Phase::kDecode, &num_decode));
        WalkCounter executor(policies, needs_lists);
        pass.kind = phase;
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

TEST_F(PolicyTest, KeysAreScoredByWindowsAndRunsOfOneSequence) {
  const Buffer memory = device_->allocate(64, MemoryKind::kDevice);
  std::vector<std::string> calls;
  int num_decode = 0;
  PolicyPair policies("toy", std::make_unique<ScoringPolicy>(&calls),
                      std::make_unique<LongListsPolicy>(Phase::kDecode, &num_decode));
  WalkCounter executor(policies, false);
  executor.num_runs = 2;
  AttentionPass pass = two_sequences(TensorView(memory.data(), DType::kI32, {4}));
  const PrefillSpan spans[] = {{.first_pos = 512, .num_rows = 300, .prompt_end = 900},
                               {.first_pos = 0, .num_rows = 256, .prompt_end = 256}};
  pass.spans = spans;
  pass.batch.max_kv_tokens = 900;
  executor.attend(*stream_, pass, {.layer = LayerId(0)});
  EXPECT_EQ(calls, (std::vector<std::string>{"select 900", "select 256"})) << "nothing to score";
  calls.clear();
  executor.attend(*stream_, pass, {.layer = LayerId(1)});
  EXPECT_EQ(calls, (std::vector<std::string>{
                       "score 512 0+256", "score 512 0+256", "choose 512 0+256", "score 512 256+44",
                       "score 512 256+44", "choose 512 256+44", "select 900", "score 0 0+256",
                       "score 0 0+256", "choose 0 0+256", "select 256"}));
}

TEST_F(PolicyTest, FullSelectsEverythingInBothPhases) {
  const std::unique_ptr<PolicyPair> full = make_policies("full");
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const Selection selection = full->of(phase).select(*stream_, {});
    EXPECT_TRUE(std::holds_alternative<AllTokens>(selection));
  }
}

}  // namespace
}  // namespace sluice
