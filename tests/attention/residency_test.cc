// The contract of Residency for both kinds: the arrays that describe a pass, and the lifetime of
// tails as blocks fill and sequences end.
#include "attention/residency.h"

#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "attention/offloaded_kv.h"
#include "attention/resident_kv.h"
#include "kv/block_manager.h"

namespace sluice {
namespace {

constexpr int32_t kBlock = 16, kNumBlocks = 12, kSlotBlocks = 2;
constexpr KvLayout kLayout{.num_layers = 2,
                           .block = {.num_kv_heads = 1, .head_dim = 16, .block_tokens = kBlock}};
constexpr PassLimits kLimits{.max_rows = 96, .max_seqs = 4, .max_blocks_per_seq = 6};

std::vector<int32_t> values_of(const TensorView& view) {
  const int32_t* first = view.data<int32_t>();
  return {first, first + view.num_elements()};
}

std::vector<int32_t> iota(int32_t first, int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

OffloadedLimits offloaded_limits(int32_t num_resident_blocks) {
  return {.sizes = {.num_host_blocks = kNumBlocks,
                    .num_slots = 2,
                    .slot_blocks = kSlotBlocks,
                    .stage_blocks = 6,
                    .num_tails = 4,
                    .num_resident_blocks = num_resident_blocks},
          .state_rows = 96,
          .blocks_stay = num_resident_blocks > 0};
}

// SequenceRows of a sequence that the test changes.
struct Rows {
  SequenceId id;
  SequenceKv* kv = nullptr;
  int64_t num_rows = 0;
};

// Describes passes and checks their arrays. The host can read the CPU device's memory, so host and
// device arrays are the same memory here and no transfer is needed.
class ResidencyTest : public ::testing::Test {
 protected:
  // The constructors enqueue work on compute; it must end before the memory is freed.
  void TearDown() override {
    compute_->synchronize();
    for (const auto& residency : made_) residency->synchronize();
    made_.clear();
  }

  void begin(SequenceKv& kv, int64_t num_tokens) {
    ASSERT_TRUE(blocks_.try_begin(kv, iota(next_token_, num_tokens), num_tokens));
    next_token_ += 1000;
  }
  void commit(Residency& residency, const std::vector<Rows>& sequences) {
    for (const Rows& rows : sequences) {
      SequenceKv& kv = *rows.kv;
      const std::vector<int32_t> tokens = iota(next_token_, kv.num_tokens() + rows.num_rows);
      blocks_.commit(kv, tokens, rows.num_rows);
      const int32_t num_full = kv.num_sealed_blocks();
      residency.committed(
          rows.id, kv.num_tokens(),
          num_full > 0 ? kv.blocks()[static_cast<size_t>(num_full - 1)].id : BlockId());
    }
  }

  AttentionPass describe(Residency& residency, Phase phase, const std::vector<Rows>& sequences,
                         PassShape shape = {}) {
    std::vector<SequenceRows> views;
    int64_t num_rows = 0;
    for (const Rows& rows : sequences) {
      views.push_back({.id = rows.id, .kv = rows.kv->view(), .num_rows = rows.num_rows});
      num_rows += rows.num_rows;
    }
    plan_ = residency.plan_pass(phase, views);
    shape.num_seqs = std::max(shape.num_seqs, std::ssize(sequences));
    shape.num_rows = std::max(shape.num_rows, num_rows);
    memory_.assign(residency.array_bytes(), std::byte{0x77});
    Arena host(memory_.data(), memory_.size());
    Arena device(memory_.data(), memory_.size());
    AttentionPass pass;
    pass.kind = phase;
    residency.describe(shape, host, device, pass);
    EXPECT_EQ(host.used_bytes(), device.used_bytes());
    return pass;
  }

  ResidentKv* make_resident() {
    return keep(
        std::make_unique<ResidentKv>(*full_, *device_, *compute_, kLayout, kNumBlocks, kLimits));
  }
  OffloadedKv* make_offloaded(int32_t num_resident_blocks = 0) {
    return keep(std::make_unique<OffloadedKv>(*full_, *device_, *compute_, kLayout, kLimits,
                                              offloaded_limits(num_resident_blocks), 1));
  }

  // A prefill pass of one sequence as the engine runs it, with zeros in place of queries and KV.
  void prefill(OffloadedKv& kv, const Rows& rows) {
    AttentionPass pass = describe(kv, Phase::kPrefill, {rows});
    std::vector<int32_t> numbers{0, static_cast<int32_t>(rows.num_rows)};
    const auto first_pos = static_cast<int32_t>(rows.kv->num_tokens());
    numbers.insert(numbers.end(), {first_pos, first_pos + static_cast<int32_t>(rows.num_rows)});
    pass.batch = {.row_begin = TensorView(numbers.data(), DType::kI32, {2}),
                  .first_pos = TensorView(numbers.data() + 2, DType::kI32, {1}),
                  .max_rows = static_cast<int32_t>(rows.num_rows),
                  .max_kv_tokens = numbers[3]};
    pass.kv_end = TensorView(numbers.data() + 3, DType::kI32, {1});
    const Buffer q =
        device_->allocate(static_cast<size_t>(rows.num_rows) * 32, MemoryKind::kDevice);
    const TensorView view(q.data(), DType::kBF16, {rows.num_rows, 1, 16});
    compute_->fill(q.data(), q.size_bytes(), 0);
    kv.begin_pass(pass);
    for (const LayerId layer : kLayout.layers()) {
      const KvBlocksView target = kv.executor().write_target(pass, layer);
      compute_->fill(target.base, target.stride_bytes * static_cast<size_t>(target.num_blocks), 0);
      kv.executor().attend(*compute_, pass, {.layer = layer, .q = view, .out = view});
    }
    kv.end_pass();
    compute_->synchronize();
    commit(kv, {rows});
  }

  template <typename Kind>
  Kind* keep(std::unique_ptr<Kind> residency) {
    Kind* made = residency.get();
    made_.push_back(std::move(residency));
    return made;
  }

  std::unique_ptr<Device> device_ = make_device("cpu", {.num_threads = 1});
  std::unique_ptr<PolicyPair> full_ = make_policies("full");
  std::unique_ptr<Stream> compute_ = device_->make_stream({.name = "compute"});
  std::vector<std::unique_ptr<Residency>> made_;
  BlockManager blocks_{{.num_blocks = kNumBlocks, .block_tokens = kBlock}};
  PassPlan plan_;
  std::vector<std::byte> memory_;
  int32_t next_token_ = 0;
};

TEST_F(ResidencyTest, ResidentRowsGoToTheBlocksOfTheirSequence) {
  auto* const kv = make_resident();
  SequenceKv a, b;
  begin(a, 20);
  begin(b, 40);
  const AttentionPass pass =
      describe(*kv, Phase::kPrefill, {{SequenceId(1), &a, 20}, {SequenceId(2), &b, 40}});
  std::vector<int32_t> rows, table;
  for (const SequenceKv* sequence : {&a, &b}) {
    for (int64_t pos = 0; pos < (sequence == &a ? 20 : 40); ++pos) {
      rows.push_back(sequence->blocks()[static_cast<size_t>(pos / kBlock)].id.value * kBlock +
                     static_cast<int32_t>(pos % kBlock));
    }
    for (const SequenceBlock& block : sequence->blocks()) table.push_back(block.id.value);
    if (sequence == &a) table.push_back(-1);
  }
  EXPECT_EQ(values_of(pass.kv_rows), rows);
  EXPECT_EQ(values_of(pass.block_table), table);
  EXPECT_EQ(values_of(pass.block_ids), table);
  EXPECT_EQ(values_of(pass.kv_begin), (std::vector{0, 0}));
  EXPECT_TRUE(plan_.capturable);
}

TEST_F(ResidencyTest, PaddingGoesNowhere) {
  auto* const resident = make_resident();
  auto* const offloaded = make_offloaded(4);
  for (Residency* kv : {static_cast<Residency*>(resident), static_cast<Residency*>(offloaded)}) {
    SequenceKv a;
    begin(a, 1);
    const AttentionPass pass = describe(*kv, Phase::kDecode, {{SequenceId(1), &a, 1}},
                                        {.num_rows = 4, .num_seqs = 4, .table_tokens = 3 * kBlock});
    EXPECT_EQ(pass.kv_rows.num_elements(), 4);
    EXPECT_GE(values_of(pass.kv_rows)[0], 0);
    EXPECT_EQ(values_of(pass.kv_rows.rows(1, 3)), (std::vector{-1, -1, -1}));
    EXPECT_EQ(values_of(pass.kv_begin), (std::vector{0, 0, 0, 0}));
    for (const int32_t entry : values_of(pass.block_table.rows(1, 3))) EXPECT_EQ(entry, -1);
    EXPECT_EQ(pass.block_table.dim(1), kv == resident ? 3 : 1);
    kv->release(SequenceId(1));
    blocks_.release(a);
  }
}

// Spans do not share a stage block, and only a partial last block takes a tail.
TEST_F(ResidencyTest, OffloadedPrefillRowsGoToTheStage) {
  auto* const kv = make_offloaded();
  SequenceKv a, b;
  begin(a, 20);
  begin(b, 32);
  const AttentionPass pass =
      describe(*kv, Phase::kPrefill, {{SequenceId(1), &a, 20}, {SequenceId(2), &b, 32}});
  std::vector<int32_t> rows = iota(0, 20);
  const std::vector<int32_t> of_b = iota(2 * kBlock, 32);
  rows.insert(rows.end(), of_b.begin(), of_b.end());
  EXPECT_EQ(values_of(pass.kv_rows), rows);
  EXPECT_EQ(values_of(pass.block_table), (std::vector{0, 1, 2, 3}));
  EXPECT_TRUE(kv->offload().tails().find(SequenceId(1)).valid());
  EXPECT_FALSE(kv->offload().tails().find(SequenceId(2)).valid());
  EXPECT_FALSE(plan_.capturable);
}

// A cancelled pass is described again; the sequence keeps its one tail.
TEST_F(ResidencyTest, APassDescribedAgainTakesNoSecondTail) {
  auto* const kv = make_offloaded();
  SequenceKv a;
  begin(a, 20);
  for (int i = 0; i < 6; ++i) describe(*kv, Phase::kPrefill, {{SequenceId(1), &a, 20}});
  EXPECT_EQ(kv->offload().tails().num_free(), 3);
  kv->release(SequenceId(1));
  EXPECT_EQ(kv->offload().tails().num_free(), 4);
}

TEST_F(ResidencyTest, ATailIsTakenAtABlockBorderAndLeavesWhenItIsFull) {
  auto* const kv = make_offloaded();
  const SequenceId id(3);
  SequenceKv a;
  begin(a, 30);
  prefill(*kv, {id, &a, 30});
  const TailId tail = kv->offload().tails().find(id);
  ASSERT_TRUE(tail.valid());
  for (int32_t pos = 30; pos < 32; ++pos) {
    ASSERT_TRUE(blocks_.try_reserve(a, 1));
    const AttentionPass pass = describe(*kv, Phase::kDecode, {{id, &a, 1}});
    EXPECT_EQ(values_of(pass.kv_rows), std::vector{tail.value * kBlock + pos % kBlock});
    EXPECT_EQ(values_of(pass.block_table), std::vector{tail.value});
    EXPECT_EQ(values_of(pass.kv_begin), std::vector{kBlock});
    EXPECT_EQ(kv->offload().tails().find(id), tail);
    commit(*kv, {{id, &a, 1}});
  }
  EXPECT_FALSE(kv->offload().tails().find(id).valid()) << "position 31 filled it";
  EXPECT_EQ(kv->offload().counters().written_bytes[0],
            2 * static_cast<int64_t>(kLayout.block_bytes()));
  ASSERT_TRUE(blocks_.try_reserve(a, 1));
  describe(*kv, Phase::kDecode, {{id, &a, 1}});
  EXPECT_TRUE(kv->offload().tails().find(id).valid());
}

TEST_F(ResidencyTest, APassWhoseBlocksAllStayIsAnotherWalk) {
  auto* const kv = make_offloaded(4);
  const SequenceId id(1);
  SequenceKv a;
  begin(a, 20);
  prefill(*kv, {id, &a, 20});
  ASSERT_TRUE(blocks_.try_reserve(a, 1));
  describe(*kv, Phase::kDecode, {{id, &a, 1}});
  EXPECT_TRUE(plan_.capturable);
  const int32_t in_place = plan_.variant;
  kv->discard(a.blocks()[0].id);
  describe(*kv, Phase::kDecode, {{id, &a, 1}});
  EXPECT_FALSE(plan_.capturable);
  EXPECT_NE(plan_.variant, in_place);
}

TEST_F(ResidencyTest, OnlyOffloadedKvFlows) {
  auto* const resident = make_resident();
  auto* const offloaded = make_offloaded();
  SequenceKv a;
  begin(a, 40);
  prefill(*offloaded, {SequenceId(1), &a, 40});
  EXPECT_EQ(resident->flowing_bytes(a.view()), 0);
  EXPECT_EQ(offloaded->flowing_bytes(a.view()), 2 * static_cast<int64_t>(kLayout.block_bytes()));
  EXPECT_EQ(resident->num_slots(), 0);
  EXPECT_EQ(offloaded->num_slots(), 2);
  TransferCounters none, some;
  resident->read_counters(none);
  offloaded->read_counters(some);
  EXPECT_TRUE(none.loaded_bytes.empty());
  EXPECT_EQ(some.written_bytes, std::vector(2, 2 * static_cast<int64_t>(kLayout.block_bytes())));
}

}  // namespace
}  // namespace sluice
