// Which functions of a policy the executor calls, and when.
#include <string>
#include <vector>

#include <fmt/format.h>
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

// Scores windows of 512 rows; writes down which queries come with which keys.
class ZonePolicy final : public Policy, public TileScorer {
 public:
  explicit ZonePolicy(std::vector<std::string>* calls)
      : Policy("toy", Phase::kPrefill), calls_(calls) {}
  SelectionRule rule(const KvBlockShape&) const override {
    return {.form = SelectionForm::kTileMasks};
  }
  TileScorer* tile_scorer() override { return this; }
  int32_t window_rows(const SelectInput&) const override { return 512; }
  void score(Stream&, const SelectInput& input, const TileRows& window,
             const KeyRun& run) override {
    const bool is_far = input.q.bytes() == input.zones.far.bytes();
    const bool is_before = input.q.bytes() == input.zones.before.bytes();
    EXPECT_EQ(run.zone, is_far ? 2 : is_before ? 1 : 0);
    calls_->push_back(
        fmt::format("rows {}+{} {}: {} to {} ({}) from block {} of {}", window.first, window.count,
                    is_far      ? "far"
                    : is_before ? "before"
                                : "own",
                    *run.kv_begin.data<int32_t>(), *run.kv_end.data<int32_t>(), run.end_pos,
                    *run.block_table.data<int32_t>(), run.block_table.dim(1)));
  }
  void choose(Stream&, const SelectInput&, const TileRows&) override {
    calls_->push_back("choose");
  }
  Selection select(Stream&, const SelectInput&) override { return {}; }

 private:
  std::vector<std::string>* calls_;
};

TensorView view_of(std::vector<int32_t>& numbers) {
  return {reinterpret_cast<std::byte*>(numbers.data()), DType::kI32, {std::ssize(numbers)}};
}

// Chunks of 512 tokens in blocks of 128, and keys in two runs: tokens 0 to 1024, and to 1700.
class TwoRuns final : public Executor {
 public:
  explicit TwoRuns(PolicyPair& policies)
      : Executor(policies, {.num_layers = 1, .block = {.block_tokens = 128}}, 512) {}
  KvBlocksView write_target(const AttentionPass&, LayerId) override { return {}; }
  int64_t num_windows(const PrefillSpan& span) const {
    return key_visits(LayerId(0), span).num_windows;
  }

 private:
  KvBlocksView written(const AttentionPass&, LayerId) const override { return {}; }
  void for_each_key_run(Stream&, const AttentionPass&, const PassPart&, const KeyWalk&,
                        const VisitKeys& visit) override {
    const TensorView ends = view_of(ends_);
    const TensorView table = view_of(table_);
    visit({.kv_begin = ends.rows(0, 1),
           .kv_end = ends.rows(1, 1),
           .block_table = table.rows(0, 8).reshape({1, 8}),
           .end_pos = 1024});
    visit({.kv_begin = ends.rows(1, 1),
           .kv_end = ends.rows(2, 1),
           .block_table = table.rows(8, 6).reshape({1, 6}),
           .end_pos = 1700});
  }
  void walk(Stream&, const AttentionPass&, const PassPart&, const LayerInput&,
            const Selection&) override {}

  std::vector<int32_t> ends_ = {0, 1024, 1700};
  std::vector<int32_t> table_ = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
};

// Windows end at borders of chunks, and each key comes once, with the queries of its zone.
TEST_F(PolicyTest, KeysAreScoredWithTheQueriesOfTheirZone) {
  std::vector<std::string> calls;
  int num_decode = 0;
  PolicyPair policies("toy", std::make_unique<ZonePolicy>(&calls),
                      std::make_unique<LongListsPolicy>(Phase::kDecode, &num_decode));
  TwoRuns executor(policies);
  const Buffer memory = device_->allocate(64, MemoryKind::kDevice);
  AttentionPass pass;
  const TensorView numbers(memory.data(), DType::kI32, {4});
  pass.kv_begin = pass.kv_end = pass.batch.first_pos = numbers.rows(0, 1);
  pass.batch.row_begin = numbers.rows(0, 2);
  pass.block_table = pass.block_ids = numbers.reshape({1, 4});
  const PrefillSpan span{.first_pos = 896, .num_rows = 804, .prompt_end = 1700};
  pass.spans = {&span, 1};
  pass.batch.max_kv_tokens = 1700;
  std::vector<int32_t> borders = {0, 512, 1024, 1536, 2048};
  pass.chunk_borders = view_of(borders);
  const auto queries = [&](int64_t at) {
    return TensorView(memory.data() + at, DType::kBF16, {1, 1, 2});
  };
  executor.attend(*stream_, pass,
                  {.layer = LayerId(0),
                   .q = queries(0),
                   .zones = {.before = queries(4), .far = queries(8), .chunk_tokens = 512}});
  EXPECT_EQ(calls, (std::vector<std::string>{
                       "rows 0+128 before: 0 to 512 (512) from block 0 of 8",
                       "rows 0+128 own: 512 to 1024 (1024) from block 4 of 4",
                       "rows 0+128 own: 1024 to 1700 (1700) from block 8 of 6", "choose",
                       "rows 128+512 far: 0 to 512 (512) from block 0 of 8",
                       "rows 128+512 before: 512 to 1024 (1024) from block 4 of 4",
                       "rows 128+512 own: 1024 to 1700 (1700) from block 8 of 6", "choose",
                       "rows 640+164 far: 0 to 1024 (1024) from block 0 of 8",
                       "rows 640+164 before: 1024 to 1536 (1536) from block 8 of 6",
                       "rows 640+164 own: 1536 to 1700 (1700) from block 12 of 2", "choose"}));
  EXPECT_EQ(executor.num_windows(span), 3) << "as loads are planned";
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
